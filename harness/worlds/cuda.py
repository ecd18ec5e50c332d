"""A real GPU: everything is measured."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_leaves

from harness.process import retire_process
from harness.worlds.base import Call, CaptureAnswer, MemoryAnswer, World

WARMUP_CALLS = 3
"""Eager calls before a capture: lazy state (modules, handles, autotuning) must be settled by then."""

MEMORY_REPEATS = 5


class CudaWorld(World):
    name: ClassVar[str] = "cuda"
    device: ClassVar[str] = "cuda"

    def unavailable(self) -> str | None:
        return None if torch.cuda.is_available() else "no CUDA device"

    @contextmanager
    def active(self) -> Iterator[None]:
        yield
        torch.cuda.empty_cache()  # trials of one process must not feel each other's memory

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def capture(self, call: Call, inputs: dict[str, Any]) -> CaptureAnswer:
        """Capture for real, count nodes, and compare the kernels of a replay with those of an eager call."""
        try:
            graph, outputs = captured(call)
        except Exception as error:
            # whatever capture raises is the finding; the device itself is fine unless synchronising fails too
            torch.cuda.synchronize()
            line = (str(error).strip().splitlines() or ["(no message)"])[0]
            return CaptureAnswer(breaks=(f"{type(error).__name__}: {line}",))
        eager = _kernels(call)
        replayed = _kernels(graph.replay)
        seen = bool(eager)
        answer = CaptureAnswer(
            nodes=_node_count(graph),
            kernels=tuple(sorted(replayed)) if seen else None,
            eager_kernels=tuple(sorted(eager)) if seen else None,
            passes_through=_pass_through(outputs, inputs),
            ran=tuple(sorted(eager)) if seen else None,
        )
        del outputs, graph
        return answer

    def memory(self, build: Callable[[], Call], *, ledgers: bool = True) -> MemoryAnswer:
        """Three ledgers: the allocator's peak, a graph's pool, and device memory lost outside the allocator."""
        build()()  # warm-up: cuBLAS workspaces and lazily loaded modules belong to the process, not to the call
        torch.cuda.synchronize()
        if ledgers:
            gc.collect()
        _settle()
        base, base_requested = torch.cuda.memory_allocated(), _requested("current")
        call = build()
        _settle()
        torch.cuda.reset_peak_memory_stats()
        inputs = _requested("current") - base_requested
        result = call()
        torch.cuda.synchronize()
        requested = _requested("peak") - base_requested
        allocated = torch.cuda.max_memory_allocated() - base
        del result
        if not ledgers:
            return MemoryAnswer(inputs, requested, allocated, growth=0)
        held, free = _requested("current"), _device_free()
        for _ in range(MEMORY_REPEATS):
            call()
            torch.cuda.synchronize()
        growth, lost = _requested("current") - held, max(0, free - _device_free())
        pool = _graph_pool(call)
        return MemoryAnswer(inputs, requested, allocated, growth, graph_pool=pool, device=lost)


def captured(call: Call) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Warm up, capture one call, instantiate. Returns the graph and the call's outputs in the graph's memory."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
            outputs = call()
    except Exception:
        retire_process()
        raise
    graph.instantiate()
    torch.cuda.synchronize()
    return graph, outputs


def _pass_through(outputs: Any, inputs: dict[str, Any]) -> bool:
    """Whether every output shares its memory with an input."""
    given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)}
    made = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    return bool(made) and all(leaf.untyped_storage().data_ptr() in given for leaf in made)


def _node_count(graph: torch.cuda.CUDAGraph) -> int | None:
    """Nodes of the captured graph as the CUDA runtime counts them; None where cuda-bindings is missing."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return None
    status, _, count = runtime.cudaGraphGetNodes(runtime.cudaGraph_t(graph.raw_cuda_graph()), 0)
    return int(count) if status == runtime.cudaError_t.cudaSuccess else None


def _kernels(call: Call) -> list[str]:
    """Names of the kernels (and copies) a call runs, from CUPTI through torch's profiler.

    The first profiler session of a process can come back empty, so an empty answer is asked for once more.
    """
    for _ in range(2):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        names = [
            _plain(event.name) for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA
        ]
        if names:
            return names
    return []


def _plain(name: str) -> str:
    """Copies and fills by one name: a graph runs small ones as kernels (``memcpy32_post``), unlike an eager call."""
    lowered = name.lower()
    return next((kind for kind in ("memcpy", "memset") if lowered.startswith(kind)), name)


def _graph_pool(call: Call) -> int | None:
    """Bytes that a captured graph of the call keeps reserved; None when it cannot be captured."""
    _settle()
    before = torch.cuda.memory_reserved()
    try:
        graph, outputs = captured(call)
    except Exception:
        torch.cuda.synchronize()
        return None
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved() - before
    del graph, outputs
    return max(0, reserved)


def _device_free() -> int:
    """Free bytes of the device, with nothing cached by torch's allocator."""
    _settle()
    return int(torch.cuda.mem_get_info()[0])


def _requested(which: str) -> int:
    return int(torch.cuda.memory_stats().get(f"requested_bytes.all.{which}", 0))


def _settle() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
