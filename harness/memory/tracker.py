"""``PeakTracker``: the largest amount of memory alive during a call, predicted or counted, and what it was."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.fake_cuda.composite import is_composite
from harness.fake_cuda.device import DeviceProperties, active_device, is_active
from harness.fake_cuda.look_into import kernel_to_look_into, look_into
from harness.memory.allocator import Block, CachingAllocator
from harness.memory.hidden import cublas_workspace, hidden_memory, is_product
from harness.memory.split_reduction import split_reduction

_SHOWN = 8


@dataclass(frozen=True)
class Alive:
    """A storage that was alive at the peak: its block, its first tensor's look, the operator that made it."""

    bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    op: str

    def __str__(self) -> str:
        return f"{self.bytes / 2**20:.1f} MiB {self.dtype} {self.shape} from {self.op}"


@dataclass(frozen=True)
class PeakReport:
    """Bytes of device memory around a call, the inputs included."""

    start_bytes: int
    """Allocated before the call: the inputs."""
    peak_bytes: int
    """Highest ``memory_allocated``, in the allocator's blocks. On the CPU the same as ``requested_peak_bytes``."""
    requested_peak_bytes: int
    """Highest sum of the live storages' bytes."""
    reserved_peak_bytes: int
    """Highest ``memory_reserved``, with the cuBLAS workspace if a matrix product ran."""
    end_bytes: int
    """Allocated when the report was made: the inputs, the results still held, and whatever was kept."""
    at_op: str
    """The operator at which the peak was reached."""
    alive_at_peak: tuple[Alive, ...]
    """What was alive then, largest first."""
    lower_bound: bool
    """Whether an operator ran that takes memory no tracker sees: the true peak may be higher."""
    unmodelled_ops: tuple[str, ...]
    """Those operators, with the reason."""

    def __str__(self) -> str:
        bound = "at least " if self.lower_bound else ""
        head = (
            f"peak {bound}{self.peak_bytes / 2**20:.1f} MiB (start {self.start_bytes / 2**20:.1f} MiB) at {self.at_op}"
        )
        return "\n  ".join([head, *map(str, self.alive_at_peak[:_SHOWN])])


class PeakTracker(TorchDispatchMode):
    """Counts the storages that operators make while they live.

        with PeakTracker(inputs) as tracker:
            result = fn(*inputs)
        tracker.report()

    Works on fake tensors inside ``fake_cuda`` (blocks of the CUDA allocator are modelled) and on real CPU tensors
    (plain bytes). Storages that existed before and are not in ``inputs`` are counted from their first use on.
    Custom operators written in Python are looked into; compiled ones are marked in the report.
    """

    def __init__(self, inputs: Any = (), device: str | None = None) -> None:
        super().__init__()
        tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        self._device = device or _device_of(tensors)
        self._allocator = CachingAllocator()
        self._live: dict[int, tuple[Block | None, Alive]] = {}
        self._at_op = ""
        self._alive_at_peak: tuple[Alive, ...] = ()
        self._unmodelled: dict[str, None] = {}
        self._products = False
        self._properties = active_device().properties if is_active() else DeviceProperties()
        for tensor in tensors:
            self._see(tensor, "input")
        self._start = self._bytes_now()
        self._allocator.reset_peaks()
        self._alive_at_peak, self._at_op = self._snapshot(), "input"

    def report(self) -> PeakReport:
        """The figures so far; may be asked for inside or after the block."""
        allocator = self._allocator
        requested = allocator.requested.peak
        real = self._device == "cuda"
        workspace = cublas_workspace(self._properties.major) if self._products and real else 0
        return PeakReport(
            start_bytes=self._start,
            peak_bytes=allocator.allocated.peak if real else requested,
            requested_peak_bytes=requested,
            reserved_peak_bytes=allocator.reserved.peak + workspace if real else requested,
            end_bytes=self._bytes_now(),
            at_op=self._at_op,
            alive_at_peak=tuple(sorted(self._alive_at_peak, key=lambda alive: -alive.bytes)),
            lower_bound=bool(self._unmodelled),
            unmodelled_ops=tuple(self._unmodelled),
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        kernel = kernel_to_look_into(func, self._device)
        if kernel is None:
            return self._run(func, args, kwargs)

        def inside() -> Any:
            with self:
                return kernel(*args, **kwargs)

        return look_into(inside, lambda: self._run(func, args, kwargs))[0]

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator whose parts are not seen, and count what it made."""
        out = func(*args, **kwargs)
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf, str(func))
        self._hidden(func, args, kwargs, out)
        return out

    def _hidden(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count the temporaries of a kernel where its rules are known, else mark the peak as a lower bound."""
        touched = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
        if not any(tensor.device.type == self._device for tensor in touched):
            return
        self._products = self._products or is_product(func)
        if self._device == "cuda" and func.namespace == "aten":
            device = self._properties
            base = str(func._schema.name).partition("::")[2]
            buffers = split_reduction(
                base, args, out, device.multi_processor_count, device.max_threads_per_multi_processor
            )
            if buffers is not None:
                self._take_for_a_moment(buffers, str(func))
                return
        reason = hidden_memory(func, args, kwargs, out)
        if reason is not None:
            self._unmodelled[f"{func} ({reason})"] = None

    def _take_for_a_moment(self, sizes: tuple[int, ...], op: str) -> None:
        before = self._peak()
        blocks = [self._allocator.malloc(size) for size in sizes]
        if self._peak() > before:
            self._at_op, self._alive_at_peak = op, self._snapshot()
        for block in blocks:
            self._allocator.free(block)

    def _see(self, tensor: torch.Tensor, op: str) -> None:
        """Count a storage when it is first seen, and take it back when it dies."""
        if tensor.device.type != self._device:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        before = self._peak()
        size = storage.nbytes()
        block = self._allocator.malloc(int(size))
        shown = block.size if block is not None and self._device == "cuda" else int(size)
        self._live[key] = block, Alive(shown, tuple(tensor.shape), tensor.dtype, op)
        weakref.finalize(storage, self._gone, key).atexit = False
        if self._peak() > before:
            self._at_op, self._alive_at_peak = op, self._snapshot()

    def _gone(self, key: int) -> None:
        block, _ = self._live.pop(key)
        self._allocator.free(block)

    def _peak(self) -> int:
        usage = self._allocator.allocated if self._device == "cuda" else self._allocator.requested
        return usage.peak

    def _bytes_now(self) -> int:
        usage = self._allocator.allocated if self._device == "cuda" else self._allocator.requested
        return usage.now

    def _snapshot(self) -> tuple[Alive, ...]:
        return tuple(alive for _, alive in self._live.values())


def _device_of(tensors: list[torch.Tensor]) -> str:
    if any(tensor.device.type == "cuda" for tensor in tensors):
        return "cuda"
    return "cuda" if is_active() else "cpu"
