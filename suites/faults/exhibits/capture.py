"""What breaks a CUDA-graph capture, or is captured and replayed stale: one line in an otherwise right operation."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

import torch

from harness import Contract, Tolerance, grid, register
from suites.faults.operations import affine, affine_inputs, affine_memory, affine_reference
from suites.faults.rooms import ALL, CAPTURE, Room, State, remembers

ROOM = Room(
    "museum_capture",
    doc="2 x + y inside a CUDA graph",
    inputs=affine_inputs,
    reference=affine_reference,
    cases=grid(m=64, k=256, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6, atol=1e-6),
    contract=Contract(),
    memory=lambda case: 3 * affine_memory(case),
)
T = torch.Tensor
TABLE = (2.0, 1.0)


def fault(mirrors: str, kind: str = "K08", **settings: Any) -> Any:
    """An exhibit that the capture gate must find; most also run on a CPU, where nothing is wrong with them."""
    return ROOM.fault(kind, gate="capture", mirrors=mirrors, worlds=CAPTURE, **{"runs": ALL, **settings})


@fault("flashinfer#4102, turboquant#12", severity="critical")
def capture_table_from_list(x: T, y: T) -> T:
    """A table is made from a Python list on the device: a copy from pageable memory."""
    table = torch.tensor(TABLE, device=x.device)
    return x * table[0] + y


@fault("public commit log")
def capture_new_tensor(x: T, y: T) -> T:
    """`new_tensor` is the same copy as `torch.tensor`."""
    return x * x.new_tensor(TABLE)[0] + y


@fault("sglang#29461", severity="critical")
def capture_item(x: T, y: T) -> T:
    """A value is read on the host to choose a branch."""
    return affine(x, y) if x.abs().amax().item() >= 0 else y


@fault("transformers#47547")
def capture_implicit_bool(x: T, y: T) -> T:
    """`if tensor:` is a host read."""
    if (x == x).any():
        return affine(x, y)
    return affine(x, y) + 0


@fault("megatron masked_select; FlagGems#4472")
def capture_boolean_mask(x: T, y: T) -> T:
    """A boolean mask selects rows: the host must know how many."""
    keep = x[:, 0] == x[:, 0]
    out = torch.zeros_like(x)
    out[keep] = affine(x[keep], y[keep])
    return out


@fault("moe routing by nonzero")
def capture_nonzero(x: T, y: T) -> T:
    """`nonzero` has a result whose size depends on data."""
    rows = (x[:, 0] == x[:, 0]).nonzero().flatten()
    return affine(x.index_select(0, rows), y.index_select(0, rows))


@fault("histogram of expert ids by unique")
def capture_unique(x: T, y: T) -> T:
    """`unique` has a result whose size depends on data."""
    groups = torch.arange(x.shape[0], device=x.device).div(8, rounding_mode="floor").unique()
    return affine(x, y) + 0.0 * groups.float().sum()


@fault("permutation by repeat_interleave")
def capture_repeat_interleave(x: T, y: T) -> T:
    """`repeat_interleave` with counts on the device, and no output size given."""
    counts = torch.ones(x.shape[0], dtype=torch.int64, device=x.device)
    rows = torch.repeat_interleave(torch.arange(x.shape[0], device=x.device), counts)
    return affine(x[rows], y)


@fault("debug print left in; vllm", severity="medium")
def capture_prints_tensor(x: T, y: T) -> T:
    """A debug line formats a device tensor."""
    assert f"{x[0, 0]}"
    return affine(x, y)


@fault("flashinfer-bench#195", kind="K20")
def capture_synchronizes(x: T, y: T) -> T:
    """The wrapper synchronises in every call: illegal in a capture, and a launch gap in every timing."""
    out = affine(x, y)
    if x.is_cuda:
        torch.cuda.synchronize()
    return out


@fault("offload paths; vllm")
def capture_through_host(x: T, y: T) -> T:
    """A scale takes a round trip through host memory."""
    scale = torch.full((1,), 2.0, device=x.device).cpu()
    return x * scale.to(x.device) + y


@fault("turboquant#12")
def capture_list_as_index(x: T, y: T) -> T:
    """A Python list indexes a device tensor: it is copied there first."""
    return affine(x, y)[list(range(x.shape[0]))]


@fault("tilelang#89, SageAttention#380", kind="K17", severity="critical", runs=CAPTURE)
def capture_default_stream(x: T, y: T) -> T:
    """The kernel is launched on the default stream, whatever the current one is."""
    with torch.cuda.stream(torch.cuda.default_stream()):
        return affine(x, y)


@fault("pygpubench exploits: side stream", kind="K20", severity="critical", runs=CAPTURE, cheat=True)
def capture_side_stream_not_joined(x: T, y: T) -> T:
    """Cheat: the work goes to a side stream that nobody waits for, where no event of the current stream sees it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return affine(x, y)


@fault("mstar#55, vllm#53818", kind="K17", runs=CAPTURE)
def capture_side_stream_not_forked(x: T, y: T) -> T:
    """A side stream works without having waited for the current one: it is outside the capture."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out = affine(x, y)
    torch.cuda.current_stream().wait_stream(side)
    return out


_lazy = State(count=lambda: 0, tables=dict)


@fault("imp#166, triton#10596", severity="critical", kind="K15")
@remembers(_lazy)
def capture_compiles_per_call(x: T, y: T) -> T:
    """Code is generated for a key that is new in every call, so it is compiled inside the capture too."""
    import sys

    _lazy.count += 1
    sys.audit("gpu.compile", f"affine kernel {_lazy.count}")
    return affine(x, y)


_counter = State(count=lambda: 0)


@fault("baked scalar; vllm#40038", kind="K09", severity="critical")
@remembers(_counter)
def capture_step_counter(x: T, y: T) -> T:
    """A Python counter enters as a kernel argument: a replay repeats the first value for ever."""
    _counter.count += 1
    return affine(x, y) + 0.0 * (x * float(_counter.count))


_branch = State(count=lambda: 0)


@fault("data-dependent branch not gated on capture; sglang#29461", kind="K09", severity="critical")
@remembers(_branch)
def capture_every_other_call(x: T, y: T) -> T:
    """Every second call takes another path: a graph holds one of them."""
    _branch.count += 1
    return affine(x, y) if _branch.count % 2 else torch.add(y, x, alpha=2)


_replaced = State(buffer=lambda: None)


@fault("vllm#40038: buffers outside the graph's pool", kind="K09", severity="critical")
@remembers(_replaced)
def capture_buffer_replaced(x: T, y: T) -> T:
    """A workspace is replaced in every call, and the one before is read: its address is not in the graph."""
    before = _replaced.buffer
    _replaced.buffer = torch.zeros_like(x)
    return affine(x, y) if before is None or before.shape != x.shape else affine(x, y) + before


@fault("captured no-op: the graph is empty", kind="K09", severity="critical", cheat=True, runs=CAPTURE)
def capture_no_op(x: T, y: T) -> T:
    """Cheat: inside a capture nothing is launched, so that a replay costs nothing."""
    if torch.cuda.is_current_stream_capturing():
        return torch.empty_like(x)
    return affine(x, y)


@fault("empty kernel body on an unlisted architecture; flashinfer#3858, Cytnx#1171", kind="K17", runs=CAPTURE)
def capture_other_architecture(x: T, y: T) -> T:
    """The kernel has a body for sm_100 and sm_120 alone: anywhere else the call succeeds and does nothing."""
    out = torch.empty_like(x)
    if torch.cuda.get_device_capability(x.device)[0] in (10, 12):
        out.copy_(affine(x, y))
    return out


@fault("KernelBench: except -> torch; vllm#35088", kind="K18", kernels=("museum::*",), cheat=True)
def capture_silent_fallback(x: T, y: T) -> T:
    """Cheat: the kernel fails to load, and the framework's operators quietly take its place."""
    try:
        return torch.ops.museum.kernel_that_was_never_built(x, y)
    except AttributeError:
        return affine(x, y)


@fault("background compilation; deferred work", severity="high", kind="K20", cheat=True)
def capture_thread_in_call(x: T, y: T) -> T:
    """Cheat: a thread is started in the call; what it launches is ordered with nothing."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    return affine(x, y)


@fault("ninja in the forward; DeepGEMM#301", kind="K15", severity="high")
def capture_starts_program(x: T, y: T) -> T:
    """A program is started in the call, as a JIT does on a cache miss."""
    subprocess.run(["true"], check=True)
    return affine(x, y)


@fault("a generator that the graph does not know", severity="high")
def capture_own_generator(x: T, y: T) -> T:
    """Random numbers from a generator that is not registered with the graph."""
    generator = torch.Generator(device=x.device)
    noise = torch.rand(x.shape, generator=generator, device=x.device)
    return affine(x, y) + 0.0 * noise


@fault("event.synchronize() to reuse a staging buffer", severity="high", runs=CAPTURE)
def capture_waits_for_event(x: T, y: T) -> T:
    """The host waits for an event before it returns."""
    out = affine(x, y)
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    return out


@fault("topk fallback with .tolist()", severity="high")
def capture_shape_from_device(x: T, y: T) -> T:
    """A slice bound comes from a device value."""
    rows = torch.full((), x.shape[0], device=x.device)
    return affine(x[:rows], y[:rows])


register(ROOM.suite())
