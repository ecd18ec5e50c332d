"""The pretended device: its properties, its streams, and who is told what happens on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.fake_cuda.findings import Severity
from harness.fake_cuda.guard import GuardKind


@dataclass(frozen=True)
class DeviceProperties:
    """What ``torch.cuda.get_device_properties`` answers. The defaults are an H200's."""

    name: str = "NVIDIA H200"
    major: int = 9
    minor: int = 0
    total_memory: int = 141 << 30
    multi_processor_count: int = 132
    L2_cache_size: int = 60 << 20
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 << 10
    shared_memory_per_block_optin: int = 227 << 10
    shared_memory_per_multiprocessor: int = 228 << 10
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""


class Listener(Protocol):
    """Somebody who wants to know what a call does to the device: the capture lint."""

    def hit(self, rule: str, severity: Severity, what: str) -> None: ...

    def launched(self, kernel: str, arguments: tuple[Any, ...], specialisation: Any) -> None: ...


@dataclass
class FakeDevice:
    """The device that ``fake_cuda`` yields. One exists at a time."""

    properties: DeviceProperties
    guard: GuardKind
    mode: Any = None
    """The fake tensor mode that is active inside the block."""
    streams: Any = None
    """The stream model (``streams.Streams``)."""
    seed: int | None = None
    """The last seed given to the default generator, if any was."""
    nvtx: list[tuple[str, str | None]] = field(default_factory=list)
    """Calls of ``torch.cuda.nvtx``, in order: ("push", name), ("pop", None), ("mark", name)."""
    listener: Listener | None = None

    @property
    def capturing(self) -> bool:
        return self.streams is not None and self.streams.capture is not None

    def hit(self, rule: str, severity: Severity, what: str) -> None:
        """Tell the listener, if there is one; outside a lint everything is allowed."""
        if self.listener is not None:
            self.listener.hit(rule, severity, what)

    def launched(self, kernel: str, arguments: tuple[Any, ...], specialisation: Any) -> None:
        if self.listener is not None:
            self.listener.launched(kernel, arguments, specialisation)


_active: list[FakeDevice] = []


def active_device() -> FakeDevice:
    """The device of the enclosing ``fake_cuda`` block."""
    if not _active:
        raise RuntimeError("this needs a pretended device: call it inside `with fake_cuda():`")
    return _active[-1]


def is_active() -> bool:
    return bool(_active)


def activate(device: FakeDevice) -> Callable[[], None]:
    """Make ``device`` the active one; returns the function that undoes it. There is never more than one."""
    if _active:
        raise RuntimeError(
            f"fake_cuda() is already active ({_active[-1].properties.name}): blocks cannot be nested, "
            "because each replaces torch.cuda; leave the outer block first"
        )
    _active.append(device)
    return _active.clear
