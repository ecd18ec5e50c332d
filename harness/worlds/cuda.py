"""A real GPU: everything is measured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

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
        # trials of one process must not feel each other's memory
        gc.collect()
        torch.cuda.empty_cache()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def capture(self, call: Call, inputs: dict[str, Any]) -> CaptureAnswer:
        """Capture for real, count nodes, and compare the kernels of a replay with those of an eager call."""
        try:
            graph, outputs = captured(call)
        except Exception as error:
            # whatever capture raises is the finding; the device itself is fine unless synchronising fails too
            torch.cuda.synchronize()
            return CaptureAnswer(breaks=(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}",))
        eager = _kernels(call)
        replayed = _kernels(graph.replay)
        seen = bool(eager)
        answer = CaptureAnswer(
            nodes=_node_count(graph),
            kernels=tuple(sorted(replayed)) if seen else None,
            eager_kernels=tuple(sorted(eager)) if seen else None,
        )
        del outputs, graph
        return answer

    def memory(self, build: Any) -> MemoryAnswer:
        """Three ledgers: the allocator's peak, a captured graph's pool, and device memory outside the allocator."""
        build()()  # warm-up: cuBLAS workspaces and lazily loaded modules belong to the process, not to the call
        torch.cuda.synchronize()
        _settle()
        free_before = torch.cuda.mem_get_info()[0]
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
        held = _requested("current")
        for _ in range(MEMORY_REPEATS):
            call()
            torch.cuda.synchronize()
        growth = _requested("current") - held
        pool = _graph_pool(call)
        del call
        _settle()
        outside = max(0, free_before - torch.cuda.mem_get_info()[0])
        return MemoryAnswer(inputs, requested, allocated, growth, graph_pool=pool, device=outside)


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
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
        outputs = call()
    graph.instantiate()
    torch.cuda.synchronize()
    return graph, outputs


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
        names = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        if names:
            return names
    return []


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


def _requested(which: str) -> int:
    return int(torch.cuda.memory_stats().get(f"requested_bytes.all.{which}", 0))


def _settle() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
