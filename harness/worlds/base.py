"""What every world can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.case import Case
from harness.inputs.draw import Draw

Call = Callable[[], Any]
"""One call of an implementation on inputs it is bound to."""


@dataclass(frozen=True)
class CaptureAnswer:
    """What a CUDA-graph capture of a call did, or would do.

    ``breaks``: capture raises, or records something else than the call. ``hazards``: it captures, and a replay
    will be stale or wrong. ``nodes`` and ``kernels`` are None where they can only be measured. ``passes_through``:
    every output is (a view of) an input, so that there is nothing to launch. ``ran`` names the kernels or operators
    of the call, None where nothing could see them.
    """

    breaks: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    nodes: int | None = None
    kernels: tuple[str, ...] | None = None
    eager_kernels: tuple[str, ...] | None = None
    passes_through: bool = False
    ran: tuple[str, ...] | None = None
    predicted: bool = False


@dataclass(frozen=True)
class MemoryAnswer:
    """Bytes of device memory around one call, inputs included.

    ``requested`` is the largest sum of live tensor bytes; ``allocated`` the same in the caching allocator's blocks;
    ``growth`` what was still held after further calls whose results were dropped. ``graph_pool`` is what a captured
    graph keeps reserved, ``device`` what further calls left taken outside the allocator; both are None
    where they can only be measured. ``lower_bound`` lists operators whose hidden temporaries are not predicted.
    """

    inputs: int
    requested: int
    allocated: int
    growth: int
    at: str = ""
    alive: tuple[str, ...] = ()
    graph_pool: int | None = None
    device: int | None = None
    lower_bound: tuple[str, ...] = ()
    predicted: bool = False


class World:
    """A place where implementations are called. Subclasses answer ``capture`` and ``memory`` where they can."""

    name: ClassVar[str]
    device: ClassVar[str]
    fake: ClassVar[bool] = False

    def unavailable(self) -> str | None:
        """None, or why this world cannot be had on this machine."""
        return None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Everything of a trial happens inside this."""
        yield

    def draw(self, case: Case, salt: int = 0) -> Draw:
        """The maker of a case's tensors on this world's device."""
        return Draw(case, self.device, salt=salt, fake=self.fake)

    def synchronize(self) -> None:
        """Wait for the device, and raise what it has to report."""

    def capture(self, call: Call, inputs: dict[str, Any]) -> CaptureAnswer:
        raise NotImplementedError(f"the {self.name} world knows nothing of CUDA graphs")

    def memory(self, build: Callable[[], Call], *, ledgers: bool = True) -> MemoryAnswer:
        """Peak of ``build()()``: ``build`` makes the inputs and returns the bound call.

        Without ``ledgers`` only the peak is answered: growth, graph pool and device memory are left out.
        """
        raise NotImplementedError(f"the {self.name} world does not account for device memory")
