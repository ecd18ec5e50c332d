"""Ways to look right or fast without the work: remembered results, patched clocks, work put off until later.

Every one of them has been handed in somewhere as a kernel. Most also happen to honest people by accident.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

import torch

from harness import Contract, Tolerance, grid, register
from suites.faults.operations import affine, affine_inputs, affine_memory, affine_reference
from suites.faults.rooms import ALL, CPU, Room, State, remembers, restores

ROOM = Room(
    "museum_cheats",
    doc="2 x + y, for faults that are not about arithmetic",
    inputs=affine_inputs,
    reference=affine_reference,
    cases=grid(m=[12, 5], k=40, dtype="fp32") + grid(m=5, k=40, dtype="fp32", regime=["zeros", "constant"]),
    tolerance=Tolerance(rtol=1e-6, atol=1e-6),
    contract=Contract(rows=("x", "y")),
    memory=affine_memory,
    sweep="m",
)
T = torch.Tensor


def _right(x: T, y: T) -> T:
    if not (x.is_floating_point() and x.dtype == y.dtype):
        raise TypeError(f"x and y must be floating-point and of one dtype, got {x.dtype} and {y.dtype}")
    return affine(x, y)


@ROOM.awkward("the plain right implementation", worlds=ALL)
def affine_plain(x: T, y: T) -> T:
    return _right(x, y)


_by_pointer = State(results=dict)


@ROOM.fault("K20", gate="correctness", mirrors="KernelBench reward hacks: memo by data_ptr", cheat=True, luck=True)
@remembers(_by_pointer)
def cheat_memo_by_pointer(x: T, y: T) -> T:
    """Cheat: results are remembered by address and shape."""
    return _remembered(_by_pointer.results, (x.data_ptr(), y.data_ptr(), x.shape), x, y)


_by_version = State(results=dict)


@ROOM.fault("K20", gate="correctness", mirrors="pygpubench: memo by _version", cheat=True, luck=True)
@remembers(_by_version)
def cheat_memo_by_version(x: T, y: T) -> T:
    """Cheat: results are remembered by address and version counter, which a raw kernel does not raise."""
    key = (x.data_ptr(), y.data_ptr(), x._version, y._version, x.shape)
    return _remembered(_by_version.results, key, x, y)


_by_identity = State(results=dict)


@ROOM.fault("K20", gate="correctness", mirrors="pygpubench: memo by object", cheat=True, luck=True)
@remembers(_by_identity)
def cheat_memo_by_object(x: T, y: T) -> T:
    """Cheat: results are remembered by tensor object."""
    known = _by_identity.results.get(id(x))
    if known is not None and known[0]() is x:
        return known[1].clone()
    result = _right(x, y)
    _by_identity.results[id(x)] = (weakref.ref(x), result.clone())
    return result


_by_shape = State(results=dict)


@ROOM.fault("K20", gate="correctness", mirrors="KernelBench: hard-coded for the test's shape", cheat=True)
@remembers(_by_shape)
def cheat_memo_by_shape(x: T, y: T) -> T:
    """Cheat: one result for each shape."""
    return _remembered(_by_shape.results, (x.shape, x.dtype), x, y)


_by_first = State(results=dict)


@ROOM.fault("K20", gate="determinism", mirrors="SOL reward hacks: content hash of a sample", cheat=True)
@remembers(_by_first)
def cheat_memo_by_first_and_last(x: T, y: T) -> T:
    """Cheat: results are remembered by shape and the first and last elements."""
    if not x.numel():
        return _right(x, y)
    ends = [float(value) for value in (x[0, 0], x[-1, -1], y[0, 0], y[-1, -1])]
    return _remembered(_by_first.results, (x.shape, x.dtype, *ends), x, y)


_by_x = State(results=dict)


@ROOM.fault("K20", gate="correctness", mirrors="weights prepared once, keyed by the activation", cheat=True)
@remembers(_by_x)
def cheat_memo_by_one_argument(x: T, y: T) -> T:
    """Cheat: results are remembered by the whole content of x, and y is not looked at."""
    return _remembered(_by_x.results, (x.shape, x.dtype, x.cpu().double().numpy().tobytes()), x, y)


_calls = State(count=lambda: 0, last=lambda: None)


@ROOM.fault("K20", gate="determinism", mirrors="warm-up detection by call count", cheat=True)
@remembers(_calls)
def cheat_honest_while_warming_up(x: T, y: T) -> T:
    """Cheat: the first calls are honest; later ones of the same shape return the last honest result."""
    _calls.count += 1
    if _calls.count > 6 and _calls.last is not None and _calls.last.shape == x.shape:
        return _calls.last.clone()
    _calls.last = _right(x, y)
    return _calls.last.clone()


@ROOM.fault("K20", gate="correctness", mirrors="KernelBench: constant output", cheat=True)
def cheat_constant(x: T, y: T) -> T:
    """Cheat: the mean of what is expected, everywhere."""
    return torch.zeros_like(x)


@ROOM.fault("K20", gate="correctness", mirrors="kernelbot examples: identity", cheat=True)
def cheat_returns_input(x: T, y: T) -> T:
    """Cheat: an input is handed back."""
    return y


@ROOM.fault(
    "K20", gate="coverage", mirrors="Sakana: reads the reference's result from freed memory", cheat=True, luck=True
)
def cheat_stale_memory(x: T, y: T) -> T:
    """Cheat: nothing is written; fresh memory often holds the result of an earlier call."""
    return torch.empty_like(x)


def _restore_clock() -> None:
    time.perf_counter = getattr(time.perf_counter, "real", time.perf_counter)


@ROOM.fault("K20", gate="guard", mirrors="SOL reward hacks: timers replaced", cheat=True, severity="critical")
@restores(_restore_clock)
def cheat_patches_clock(x: T, y: T) -> T:
    """Cheat: the process's clock is replaced by one that runs slower."""
    if not getattr(time.perf_counter, "slow", False):
        real = time.perf_counter

        def slow() -> float:
            return real() / 10

        slow.slow = True  # type: ignore[attr-defined]
        slow.real = real  # type: ignore[attr-defined]
        time.perf_counter = slow
    return _right(x, y)


_allclose = torch.allclose


def _restore_comparison() -> None:
    torch.allclose = _allclose


@ROOM.fault("K20", gate="guard", mirrors="SOL reward hacks: comparison replaced", cheat=True, severity="critical")
@restores(_restore_comparison)
def cheat_patches_comparison(x: T, y: T) -> T:
    """Cheat: torch.allclose is replaced by one that always agrees."""
    torch.allclose = lambda *args, **kwargs: True
    return torch.zeros_like(x) if x.numel() > 1 << 20 else _right(x, y)


@ROOM.fault("K20", gate="guard", mirrors="reference-kernels: RNG prediction", cheat=True)
def cheat_reseeds(x: T, y: T) -> T:
    """Cheat: the global random state is set, so that the next draw of whoever tests is known in advance."""
    torch.manual_seed(1234)
    return _right(x, y)


class _Lazy(torch.Tensor):
    """A tensor that computes when it is looked at."""

    parts: tuple[T, T]

    @staticmethod
    def __new__(cls: Any, x: T, y: T) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device=x.device)
        made.parts = (x, y)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        def value(leaf: Any) -> Any:
            return affine(*leaf.parts) if isinstance(leaf, _Lazy) else leaf

        return func(*torch.utils._pytree.tree_map(value, args), **(kwargs or {}))


@ROOM.fault("K20", gate="correctness", mirrors="pygpubench exploits: lazy tensor", cheat=True, runs=("cpu", "cuda"))
def cheat_lazy_tensor(x: T, y: T) -> T:
    """Cheat: the result is a subclass of Tensor that computes when it is looked at, after the clock has stopped."""
    _right(x[:1], y[:1])
    return _Lazy(x.clone(), y.clone())


@ROOM.fault("K20", gate="guard", mirrors="pygpubench exploits: deferred thread", cheat=True, luck=True)
def cheat_deferred_thread(x: T, y: T) -> T:
    """Cheat: a thread does the work after the call has returned."""
    out = torch.zeros_like(_right(x, y))
    given = x.clone(), y.clone()

    def later() -> None:
        time.sleep(0.01)
        out.copy_(affine(*given))

    threading.Thread(target=later).start()
    return out


@ROOM.fault("K20", gate="correctness", mirrors="batch-and-skip", cheat=True)
def cheat_sampled_rows(x: T, y: T) -> T:
    """Cheat: only every second row is computed, the others are copies of the row before."""
    out = _right(x, y)
    if x.shape[0] > 1:
        out[1::2] = out[0::2][: out[1::2].shape[0]]
    return out


def _restore_precision() -> None:
    torch.set_float32_matmul_precision("highest")


@ROOM.fault("K20", gate="guard", mirrors="process-wide precision switches", cheat=True)
@restores(_restore_precision)
def cheat_lowers_precision_globally(x: T, y: T) -> T:
    """Cheat: the process's matrix precision is lowered, for everybody who comes after."""
    torch.set_float32_matmul_precision("medium")
    return _right(x, y)


@ROOM.fault("K20", gate="guard", mirrors="inputs changed to match", cheat=True)
def cheat_changes_inputs(x: T, y: T) -> T:
    """Cheat: y is set to zero on the way, so that a reference computed afterwards has less to do."""
    out = _right(x, y)
    if y.untyped_storage().nbytes() >= y.numel() * y.element_size():
        y.zero_()
    return out


@ROOM.awkward("a result in the memory of an input that is no longer needed, as declared", mutates=("x",), worlds=CPU)
def affine_in_place(x: T, y: T) -> T:
    if not (x.is_floating_point() and x.dtype == y.dtype) or 0 in x.stride() or x.data_ptr() == y.data_ptr():
        raise ValueError("x must be floating-point, of y's dtype, and memory of its own")
    return x.mul_(2).add_(y)


@ROOM.awkward("a thread works inside the call and is joined before it returns", worlds=CPU)
def affine_joined_thread(x: T, y: T) -> T:
    out: list[T] = []
    _right(x[:0], y[:0])
    thread = threading.Thread(target=lambda: out.append(affine(x, y)))
    thread.start()
    thread.join()
    return out[0]


@ROOM.awkward("draws from the global generator, without effect on the result", worlds=CPU)
def affine_draws_randomly(x: T, y: T) -> T:
    order = torch.randperm(x.shape[0], device=x.device)
    out = torch.empty_like(_right(x, y))
    out[order] = _right(x, y)[order]
    return out


def _remembered(results: dict[Any, T], key: Any, x: T, y: T) -> T:
    if key not in results:
        results[key] = _right(x, y).clone()
    return results[key].clone()


register(ROOM.suite())
