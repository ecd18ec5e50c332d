"""What ``torch.cuda`` answers while the device is pretended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.fake_cuda.device import FakeDevice
from harness.fake_cuda.findings import Severity
from harness.fake_cuda.generators import FakeGenerator, asks_generator, reseed
from harness.fake_cuda.patching import Patches
from harness.fake_cuda.streams import FakeEvent, FakeStream, StreamContext


def stand_in(patches: Patches, device: FakeDevice) -> None:
    """Replace the part of ``torch.cuda`` that would talk to a driver."""
    _device(patches, device)
    _streams(patches, device)
    _memory(patches, device)
    _random(patches, device)
    _nvtx(patches, device)
    _graphs(patches)


def _device(patches: Patches, device: FakeDevice) -> None:
    cuda, properties = torch.cuda, device.properties
    for name, answer in {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "is_initialized": True,
        "get_device_name": properties.name,
        "get_device_capability": (properties.major, properties.minor),
        "get_device_properties": properties,
        "is_bf16_supported": properties.major >= 8,
        "can_device_access_peer": False,
        "get_arch_list": [f"sm_{properties.major}{properties.minor}"],
        "init": None,
        "_lazy_init": None,
        "set_device": None,
        # what `with torch.cuda.device(...)` is made of; the CPU-only build raises here
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }.items():
        patches.set_if_there(cuda, name, _answer(answer))
    if hasattr(torch, "accelerator"):
        accelerator = torch.accelerator
        patches.set_if_there(accelerator, "is_available", _answer(True))
        patches.set_if_there(accelerator, "device_count", _answer(1))
        patches.set_if_there(accelerator, "current_accelerator", _answer(torch.device("cuda")))
        patches.set_if_there(accelerator, "current_device_index", _answer(0))


def _streams(patches: Patches, device: FakeDevice) -> None:
    cuda, streams = torch.cuda, device.streams

    def synchronize(device_index: Any = None) -> None:
        device.hit("host-sync", Severity.BREAK, "torch.cuda.synchronize()")

    def set_stream(stream: FakeStream | None) -> None:
        streams.current = stream or streams.current

    def current(device_index: Any = None) -> FakeStream:
        found: FakeStream = streams.current
        return found

    def record_stream(tensor: torch.Tensor, stream: FakeStream) -> None:
        what = "record_stream: memory freed during the capture is given back only after it"
        device.hit("record-stream", Severity.HAZARD, what)

    patches.set(cuda, "synchronize", synchronize)
    patches.set(cuda, "Stream", FakeStream)
    patches.set(cuda, "ExternalStream", lambda stream_ptr, device=None: FakeStream(stream_ptr=stream_ptr))
    patches.set(cuda, "Event", FakeEvent)
    patches.set(cuda, "stream", StreamContext)
    patches.set(cuda, "StreamContext", StreamContext)
    patches.set(cuda, "current_stream", current)
    patches.set(cuda, "default_stream", _answer(streams.default))
    patches.set(cuda, "set_stream", set_stream)
    patches.set(cuda, "is_current_stream_capturing", lambda: device.capturing)
    # the binding insists on a stream of its own kind, so the method is replaced, not observed
    patches.set(torch.Tensor, "record_stream", record_stream)
    if hasattr(torch, "accelerator"):
        patches.set_if_there(torch.accelerator, "synchronize", synchronize)
        patches.set_if_there(torch.accelerator, "current_stream", current)
        patches.set_if_there(torch.accelerator, "set_stream", set_stream)


def _memory(patches: Patches, device: FakeDevice) -> None:
    def empty_cache() -> None:
        # The allocator releases nothing while a capture is under way (release_cached_blocks tests captures_underway),
        # so it captures; measured on an H200.
        if device.capturing:
            device.hit(
                "allocator",
                Severity.NOTE,
                "torch.cuda.empty_cache(): no effect during a capture, slow in eager",
            )

    total = device.properties.total_memory
    patches.set(torch.cuda, "empty_cache", empty_cache)
    patches.set(torch.cuda, "mem_get_info", _answer((total, total)))
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        patches.set(torch.cuda, name, _answer(0))
    patches.set(torch.cuda, "memory_stats", _answer({}))
    patches.set(torch.cuda, "reset_peak_memory_stats", _answer(None))


def _random(patches: Patches, device: FakeDevice) -> None:
    def manual_seed(seed: int) -> None:
        reseed(int(seed), device.seed, "torch.cuda.manual_seed")
        device.seed = int(seed)

    def read_state(device_index: Any = "cuda") -> torch.Tensor:
        asks_generator("torch.cuda.get_rng_state")
        return torch.zeros(16, dtype=torch.uint8)

    def initial_seed() -> int:
        asks_generator("torch.cuda.initial_seed")
        return device.seed or 0

    def write_state(state: torch.Tensor, device_index: Any = "cuda") -> None:
        if device.capturing:
            what = "sets the state of the default generator: a replay does not"
            device.hit("rng-seed", Severity.HAZARD, what)

    patches.set(torch, "Generator", FakeGenerator)
    for name in ("manual_seed", "manual_seed_all"):
        patches.set(torch.cuda, name, manual_seed)
        patches.set(torch.cuda.random, name, manual_seed)
    patches.set(torch.cuda, "get_rng_state", read_state)
    patches.set(torch.cuda, "initial_seed", initial_seed)
    patches.set(torch.cuda, "set_rng_state", write_state)
    patches.set(torch.cuda, "default_generators", (FakeGenerator("cuda"),))


def _nvtx(patches: Patches, device: FakeDevice) -> None:
    nvtx = torch.cuda.nvtx

    def push(message: str) -> int:
        device.nvtx.append(("push", message))
        return 0

    def pop() -> int:
        device.nvtx.append(("pop", None))
        return 0

    patches.set(nvtx, "range_push", push)
    patches.set(nvtx, "range_pop", pop)
    patches.set(nvtx, "mark", lambda message: device.nvtx.append(("mark", message)))


def _graphs(patches: Patches) -> None:
    """With a GPU in the machine these would begin a real capture, of nothing."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a pretended device captures no graphs; lint_capture says what a capture would meet")

    for name in ("CUDAGraph", "graph", "make_graphed_callables", "graph_pool_handle"):
        patches.set_if_there(torch.cuda, name, refuse)


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value
