"""Streams and events that do nothing but remember who waited for whom.

CUDA's rules during a capture, which this reproduces:

- a stream joins the capture when it waits for an event (or a stream) that belongs to it;
- waiting, from inside, for work that does not belong to it is cudaErrorStreamCaptureIsolation;
- at the end, all captured work must be ordered before the origin stream, else cudaErrorStreamCaptureUnjoined.

Order is kept as vector clocks: a stream knows, for every stream, up to which of its launches it has waited.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch

from harness.fake_cuda.device import active_device
from harness.fake_cuda.findings import Severity
from harness.fake_cuda.pretend_pointer import PretendPointer

Clock = dict[int, int]


class Capture:
    """One capture: which streams are part of it, and what each has waited for."""

    def __init__(self, origin: FakeStream) -> None:
        self.origin = origin
        self.clocks: dict[int, Clock] = {origin.stream_id: {}}

    def holds(self, stream: FakeStream) -> bool:
        return stream.stream_id in self.clocks

    def launch(self, stream: FakeStream) -> None:
        clock = self.clocks[stream.stream_id]
        clock[stream.stream_id] = clock.get(stream.stream_id, 0) + 1

    def order(self, stream: FakeStream, after: Clock) -> None:
        """``stream`` waits for everything that ``after`` has seen, and joins the capture by that."""
        clock = self.clocks.setdefault(stream.stream_id, {})
        for key, count in after.items():
            clock[key] = max(clock.get(key, 0), count)

    def unjoined(self) -> list[int]:
        """Streams with captured work that the origin has not waited for."""
        seen = self.clocks[self.origin.stream_id]
        return [key for key, clock in self.clocks.items() if clock.get(key, 0) > seen.get(key, 0)]


class Streams:
    """The streams of one device, the current one, and the capture under way."""

    def __init__(self) -> None:
        self._count = 0
        self.default = FakeStream(owner=self)
        self.current = self.default
        self.capture: Capture | None = None

    def new_id(self) -> int:
        self._count += 1
        return self._count

    def begin_capture(self) -> None:
        """As ``torch.cuda.graph`` does: capture on a stream of its own, which becomes the current one."""
        origin = FakeStream(owner=self)
        self.capture, self.current = Capture(origin), origin

    def end_capture(self) -> list[int]:
        """Back to the default stream; returns the streams left unjoined."""
        assert self.capture is not None
        unjoined = self.capture.unjoined()
        self.capture, self.current = None, self.default
        return unjoined


class FakeStream:
    """Stands in for ``torch.cuda.Stream``."""

    def __init__(self, device: Any = None, priority: int = 0, owner: Streams | None = None, **handle: Any) -> None:
        owner = owner or active_device().streams
        self.stream_id = owner.new_id()
        self.cuda_stream = PretendPointer(handle.get("stream_ptr", self.stream_id - 1))  # 0: the default stream
        self.priority = priority
        self.device = torch.device("cuda", 0)
        self._previous: list[FakeStream] = []

    def synchronize(self) -> None:
        active_device().hit("host-sync", Severity.BREAK, "Stream.synchronize()")

    def query(self) -> bool:
        active_device().hit("host-sync", Severity.BREAK, "Stream.query() during a capture")
        return True

    def wait_event(self, event: FakeEvent) -> None:
        if not event.recorded:
            return  # CUDA waits for nothing then
        device = active_device()
        capture: Capture | None = device.streams.capture
        if capture is None:
            return
        if event.capture is capture:
            capture.order(self, event.clock)
        elif capture.holds(self) and not event.external:
            device.hit(
                "capture-isolation",
                Severity.BREAK,
                "waits, inside the capture, for an event recorded outside it",
            )

    def wait_stream(self, stream: FakeStream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        event = event if event is not None else FakeEvent()
        event.record(self)
        return event

    def __enter__(self) -> FakeStream:
        streams = active_device().streams
        self._previous.append(streams.current)
        streams.current = self
        return self

    def __exit__(self, *exc: object) -> None:
        active_device().streams.current = self._previous.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class FakeEvent:
    """Stands in for ``torch.cuda.Event``."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self.external = external
        self.recorded = False
        self.capture: Capture | None = None
        self.clock: Clock = {}

    def record(self, stream: FakeStream | None = None) -> None:
        streams = active_device().streams
        stream = stream or streams.current
        self.recorded = True
        inside = streams.capture is not None and streams.capture.holds(stream)
        self.capture = streams.capture if inside else None
        self.clock = dict(streams.capture.clocks[stream.stream_id]) if inside else {}

    def wait(self, stream: FakeStream | None = None) -> None:
        (stream or active_device().streams.current).wait_event(self)

    def synchronize(self) -> None:
        active_device().hit("host-sync", Severity.BREAK, "Event.synchronize()")

    def query(self) -> bool:
        active_device().hit("host-sync", Severity.BREAK, "Event.query() during a capture")
        return True

    def elapsed_time(self, other: FakeEvent) -> float:
        active_device().hit("host-sync", Severity.BREAK, "Event.elapsed_time()")
        return 0.0


class StreamContext(AbstractContextManager[None]):
    """Stands in for ``torch.cuda.stream(...)``; None means the current stream."""

    def __init__(self, stream: FakeStream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        streams = active_device().streams
        self._previous = streams.current
        streams.current = self.stream or streams.current

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        active_device().streams.current = self._previous
