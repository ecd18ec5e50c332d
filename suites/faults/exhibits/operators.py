"""Custom operators whose declarations are not true: fakes, mutations, aliases. Eager tests see nothing of it."""

from __future__ import annotations

from typing import Any

import torch

from harness import Contract, Tolerance, grid, register
from suites.faults.operations import affine, affine_inputs, affine_reference
from suites.faults.rooms import ALL, CPU, Room

T = torch.Tensor

ROOM = Room(
    "museum_operators",
    doc="2 x + y as custom operators",
    inputs=affine_inputs,
    reference=affine_reference,
    cases=grid(m=[8, 9], k=24, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6, atol=1e-6),
    contract=Contract(compilable=True),
)


def operator(name: str, mutates: tuple[str, ...] = ()) -> Any:
    """Define ``museum::name`` from a Python kernel. Annotations are written out for the schema."""

    def define(function: Any) -> Any:
        return torch.library.custom_op(f"museum::{name}", function, mutates_args=mutates)

    return define


def _check(x: T, y: T) -> None:
    if not (x.is_floating_point() and x.dtype == y.dtype):
        raise TypeError("x and y must be floating-point and of one dtype")


@operator("right")
def _right(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _check(x, y)
    return affine(x.contiguous(), y.contiguous())


@_right.register_fake
def _(x: T, y: T) -> T:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@ROOM.awkward("a custom operator that does what it declares", worlds=ALL)
def operator_plain(x: T, y: T) -> T:
    return _right(x, y)


@operator("scratch", mutates=("scratch",))
def _scratch(x: torch.Tensor, y: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    _check(x, y)
    scratch.copy_(2 * x)
    return scratch + y


@_scratch.register_fake
def _(x: T, y: T, scratch: T) -> T:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@ROOM.awkward("a custom operator that writes a scratch buffer, and says so", worlds=CPU)
def operator_declared_scratch(x: T, y: T) -> T:
    return _scratch(x, y, torch.empty(x.shape, dtype=x.dtype, device=x.device))


@operator("unpadded_fake")
def _unpadded_fake(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _check(x, y)
    wide = torch.zeros(x.shape[0], x.shape[1] + 8, dtype=x.dtype, device=x.device)
    wide[:, : x.shape[1]] = affine(x, y)
    return wide[:, : x.shape[1]]


@_unpadded_fake.register_fake
def _(x: T, y: T) -> T:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@ROOM.fault(
    "K21", gate="recompile", mirrors="pytorch#182328 (vLLM): expected stride 3072, got 2880", severity="critical"
)
def operator_fake_has_other_strides(x: T, y: T) -> T:
    """The operator's result has padded rows, and its fake does not know."""
    return _unpadded_fake(x, y)


@operator("hidden_write")
def _hidden_write(x: torch.Tensor, y: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    _check(x, y)
    scratch.copy_(2 * x)
    return scratch + y


@_hidden_write.register_fake
def _(x: T, y: T, scratch: T) -> T:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@ROOM.fault("K21", gate="recompile", mirrors="flashinfer#4361: mutates_args", severity="critical")
def operator_hidden_mutation(x: T, y: T) -> T:
    """The operator writes its workspace, and its schema does not say so."""
    return _hidden_write(x, y, torch.zeros(x.shape, dtype=x.dtype, device=x.device))


_LIBRARY = torch.library.Library("museum", "FRAGMENT")
_LIBRARY.define("maybe_view(Tensor x, Tensor y) -> Tensor")


def _maybe_view(x: T, y: T) -> T:
    _check(x, y)
    if x.shape[0] % 8 == 0:
        return y
    return y.clone()


_LIBRARY.impl("maybe_view", _maybe_view, "CompositeExplicitAutograd")
torch.library.register_fake("museum::maybe_view", lambda x, y: torch.empty_like(y), lib=_LIBRARY)


@ROOM.fault("K21", gate="recompile", mirrors="pytorch#182006, vllm#44130", severity="critical")
def operator_alias_on_one_branch(x: T, y: T) -> T:
    """Where no padding is needed, the operator returns its argument and not a copy of it."""
    return 2 * x + torch.ops.museum.maybe_view(x, y)


def _checked(x: T, y: T) -> T:
    _check(x, y)
    return affine(x, y)


_LIBRARY.define("no_fake(Tensor x, Tensor y) -> Tensor")
_LIBRARY.impl("no_fake", _checked, "CPU")
_LIBRARY.impl("no_fake", _checked, "CUDA")


@ROOM.fault("K21", gate="recompile", mirrors="sglang#19725, aiter#4617", severity="high")
def operator_without_fake(x: T, y: T) -> T:
    """The operator has no fake: nothing that traces can pass it."""
    return torch.ops.museum.no_fake(x, y)


_LIBRARY.define("other_dtype(Tensor x, Tensor y) -> Tensor")
_LIBRARY.impl("other_dtype", _checked, "CompositeExplicitAutograd")
torch.library.register_fake(
    "museum::other_dtype", lambda x, y: torch.empty(x.shape, dtype=torch.bfloat16, device=x.device), lib=_LIBRARY
)


@ROOM.fault("K21", gate="recompile", mirrors="pytorch#182328: fake not updated", severity="high")
def operator_fake_has_other_dtype(x: T, y: T) -> T:
    """The fake says bf16, the operator returns float32."""
    return torch.ops.museum.other_dtype(x, y)


_LIBRARY.define("padded_rows(Tensor x, Tensor y) -> Tensor")


def _padded_rows(x: T, y: T) -> T:
    _check(x, y)
    return torch.nn.functional.pad(affine(x, y), (0, 0, 0, -x.shape[0] % 8))


_LIBRARY.impl("padded_rows", _padded_rows, "CompositeExplicitAutograd")
torch.library.register_fake(
    "museum::padded_rows", lambda x, y: torch.empty(x.shape, dtype=x.dtype, device=x.device), lib=_LIBRARY
)


@ROOM.fault("K21", gate="recompile", mirrors="pytorch#182328: the padded branch", severity="critical")
def operator_fake_ignores_padding(x: T, y: T) -> T:
    """The operator pads its rows to a multiple of 8; its fake describes the unpadded result."""
    return torch.ops.museum.padded_rows(x, y)[: x.shape[0]]


@ROOM.fault("K21", gate="recompile", mirrors="public commit log: context managers in traced code", severity="medium")
def operator_print_in_call(x: T, y: T) -> T:
    """The traced code looks a tensor up by its address, which a tracer cannot follow."""
    _check(x, y)
    return affine(x, y) if x.data_ptr() != 1 else y


register(ROOM.suite())
