"""The recompile gate and the watchers below it: torch.compile, compilers as programs, and reports of a kernel's own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator

import pytest
import torch

from harness.case import grid
from harness.compile_watch import watch_compiles
from harness.suite import Contract, Suite
from harness.tests.planted import assert_fails, assert_passes, correct, judge, make_suite

SWEPT = {"cases": grid(m=[16, 256], k=24, dtype="fp32"), "sweep": "m"}
TOP = SWEPT["cases"][1]  # type: ignore[index]


class Compiles:
    """A kernel with a cache of compiled code, keyed by ``key(x)``, that reports its compiles."""

    def __init__(self, key: Callable[[torch.Tensor], object]) -> None:
        self.key = key
        self.cache: set[object] = set()

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        key = self.key(x)
        if key not in self.cache:
            self.cache.add(key)
            sys.audit("gpu.compile", f"axpy for {key}")
        return correct(x, y)


def test_a_compile_at_every_call_is_caught() -> None:
    def always(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sys.audit("gpu.compile", "axpy")
        return correct(x, y)

    assert_fails(judge("recompile", always), "the second call compiled", "axpy")


def test_a_cache_keyed_by_address_is_caught() -> None:
    """Two live tensors have two addresses; a kernel that is compiled for one of them is compiled again."""
    kept = []

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return by_address(x, y)

    by_address = Compiles(lambda x: x.data_ptr())
    assert_fails(judge("recompile", kernel), "the second call compiled")


def test_a_compile_for_every_size_is_caught_and_counted() -> None:
    verdict = judge("recompile", Compiles(lambda x: x.shape[0]), case=TOP, **SWEPT)
    assert_fails(verdict, "too many kernels for m from 1 to 129", "at most 0 compiles", "axpy for 1")
    assert verdict.figure("compiles_sweep") == 10


def test_a_compile_for_every_size_is_allowed_up_to_the_limit_of_the_contract() -> None:
    def buckets(x: torch.Tensor) -> int:
        return x.shape[0].bit_length()

    assert_passes(judge("recompile", Compiles(buckets), case=TOP, contract=Contract(max_compiles=9), **SWEPT))
    few = Contract(max_compiles=2)
    assert_fails(judge("recompile", Compiles(buckets), case=TOP, contract=few, **SWEPT), "at most 2")


def test_one_kernel_for_all_sizes_passes() -> None:
    verdict = judge("recompile", Compiles(lambda x: x.dtype), case=TOP, **SWEPT)
    assert_passes(verdict)
    assert (verdict.figure("compiles_first_call"), verdict.figure("compiles_sweep")) == (1, 0)


def test_a_cache_of_one_entry_is_caught_on_the_way_back() -> None:
    class LastOnly(Compiles):
        def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out = super().__call__(x, y)
            self.cache = {self.key(x)}
            return out

    verdict = judge(
        "recompile", LastOnly(lambda x: x.shape[0] > 64), case=TOP, contract=Contract(max_compiles=2), **SWEPT
    )
    assert_fails(verdict, "going through the sizes again compiled")


def test_compiled_code_that_is_wrong_for_the_sizes_before_is_caught() -> None:
    """A constant of the size before is baked in: other bits after a larger one than after a smaller one."""
    last = [TOP["m"]]

    def baked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        larger, last[0] = last[0] > x.shape[0], x.shape[0]
        return correct(x, y) * (1 + larger * 2.0**-22)

    assert_fails(judge("recompile", baked, case=TOP, **SWEPT), "in the other order")


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    import torch._dynamo

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_torch_compile_that_recompiles_for_every_size_is_caught(fresh_dynamo: None) -> None:
    compiled = torch.compile(lambda x, y: 2 * x + y, backend="eager", dynamic=False)
    verdict = judge("recompile", compiled, case=TOP, **SWEPT)
    assert_fails(verdict, "too many kernels", "torch.compile: a frame")
    assert int(verdict.figure("compiles_first_call") or 0) >= 1


def test_torch_compile_with_dynamic_sizes_passes(fresh_dynamo: None) -> None:
    compiled = torch.compile(lambda x, y: 2 * x + y, backend="eager", dynamic=True)
    verdict = judge("recompile", compiled, case=TOP, contract=Contract(max_compiles=2), **SWEPT)
    assert_passes(verdict)


def test_only_the_case_with_the_largest_sweep_size_is_judged() -> None:
    from harness.gates import GATES

    suite: Suite = make_suite(correct, cases=grid(m=[1, 64, 256], k=[16, 32], dtype="fp32"), sweep="m")
    judged = [case.id for case in suite.cases if GATES["recompile"].applies(suite, "kernel", case) is None]
    assert judged == ["m256-k16-fp32-normal", "m256-k32-fp32-normal"]


COMMANDS: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run(["gcc", "--version"], capture_output=True),
    "a full path": lambda: subprocess.run(["/usr/bin/gcc", "--version"], capture_output=True),
    "a target prefix and a version": lambda: _try_run("x86_64-linux-gnu-gcc-12"),
    "a shell": lambda: subprocess.run("true && gcc --version", shell=True, capture_output=True),
    "os.system": lambda: os.system("gcc --version > /dev/null 2>&1"),
    "posix_spawn": lambda: os.waitpid(os.posix_spawn("/bin/true", ["nvcc"], {}), 0),
}


def _try_run(program: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # the attempt is what counts
        subprocess.run([program, "--version"], capture_output=True)


@pytest.mark.parametrize("start", COMMANDS.values(), ids=COMMANDS)
def test_a_compiler_started_as_a_program_is_seen(start: Callable[[], object]) -> None:
    try:
        with watch_compiles() as events:
            start()
    except FileNotFoundError:
        pytest.skip("no gcc here")
    assert len(events) == 1, events
    assert events[0].startswith("program: ")


def test_a_compiler_started_in_each_call_is_caught() -> None:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        _try_run("nvcc")
        return correct(x, y)

    assert_fails(judge("recompile", kernel), "the second call compiled", "program: nvcc")


def test_other_programs_and_what_happens_outside_are_not_counted() -> None:
    with watch_compiles() as events:
        subprocess.run(["true", "gcc"], check=True)
        subprocess.run(["/bin/sh", "-c", "true"], check=True)
        sys.audit("harness.other", "x")
    sys.audit("gpu.compile", "after the block")
    _try_run("nvcc")
    assert events == []


def test_watchers_nest_and_each_sees_what_happens_inside_it() -> None:
    with watch_compiles() as outer:
        sys.audit("gpu.compile", "one")
        with watch_compiles() as inner:
            sys.audit("gpu.compile", "two")
    assert (outer, inner) == (["one", "two"], ["two"])


def test_the_compilers_of_triton_cute_dsl_and_nvrtc_are_watched_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins with the names and shapes of the real modules, which need a GPU to compile anything."""

    class CompileCallable:
        def __call__(self, func: object) -> str:
            return "compiled"

    class Program:
        def __init__(self, code: str) -> None:
            self.code = code

    def compile(src: object) -> str:
        return "compiled"

    modules = {
        "triton.compiler.compiler": {"compile": compile},
        "triton.runtime.jit": {"compile": compile},
        "triton.compiler": {"compile": compile},
        "cutlass.base_dsl.compiler": {"CompileCallable": CompileCallable},
        "cuda.core": {"Program": Program},
    }
    made = {}
    for name, content in modules.items():
        made[name] = types.ModuleType(name)
        made[name].__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, made[name])
    before = CompileCallable.__call__
    with watch_compiles() as events:
        made["triton.compiler.compiler"].compile(types.SimpleNamespace(name="axpy_kernel"))
        made["triton.runtime.jit"].compile(types.SimpleNamespace(name="axpy_kernel"))
        CompileCallable()(correct)
        assert made["cuda.core"].Program("code").code == "code"
    assert events == ["triton: axpy_kernel", "triton: axpy_kernel", "cute.compile: correct", "nvrtc: a program"]
    assert made["triton.compiler.compiler"].compile is compile
    assert CompileCallable.__call__ is before
    assert made["cuda.core"].Program is Program


def test_patches_are_taken_back_when_the_block_raises() -> None:
    with pytest.raises(RuntimeError, match="kernel failed"), watch_compiles() as events:
        raise RuntimeError("kernel failed")
    sys.audit("gpu.compile", "after")
    assert events == []
