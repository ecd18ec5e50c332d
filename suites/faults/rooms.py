"""A room of the museum: one operation, with everything that is wrong or only awkward about ways to compute it.

    ROOM = Room("museum_rms_norm", inputs=..., reference=..., cases=..., ...)

    @ROOM.fault("K12", gate="coverage", mirrors="...")
    def leaves_last_row(x, weight): ...

    @ROOM.awkward("padding is allocated, and the result is a view of the first rows")
    def padded_output(x, weight): ...

    register(ROOM.suite())

Each room becomes an ordinary suite, each piece in it an ordinary implementation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from harness import Contract, Implementation, Suite
from harness.museum import Awkward, Exhibit
from harness.verdict import Status

F = TypeVar("F", bound=Callable[..., Any])

CPU = ("cpu", "cuda")
"""Shown by real tensors, with or without a GPU."""

CAPTURE = ("fake-cuda", "cuda")
"""Shown by CUDA tensors, real or pretended."""

GPU = ("cuda",)
"""Shown by a GPU alone."""

ALL = ("cpu", "fake-cuda", "cuda")

EXHIBITS: list[Exhibit] = []
AWKWARD: list[Awkward] = []


class Room:
    """Collects the pieces of one suite; ``fields`` are those of ``Suite`` but its implementations."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.name, self.fields = name, fields
        self.implementations: dict[str, Implementation] = {}

    def fault(
        self,
        kind: str,
        *,
        gate: str,
        mirrors: str,
        severity: str = "high",
        worlds: tuple[str, ...] = CPU,
        runs: tuple[str, ...] | None = None,
        status: Status = Status.FAIL,
        cheat: bool = False,
        only: tuple[str, ...] = (),
        luck: bool = False,
        name: str | None = None,
        **settings: Any,
    ) -> Callable[[F], F]:
        """Show a function as an exhibit. Its docstring's first sentence is the fault.

        ``worlds`` must catch it; ``runs`` are those it can run in at all (the same by default). ``settings`` are
        fields of ``Implementation``, or of ``Contract`` to change there.
        """

        def add(function: F) -> F:
            label = name or _name(function)
            self._add(label, function, runs or worlds, settings)
            EXHIBITS.append(
                Exhibit(
                    name=label,
                    kind=kind,
                    suite=self.name,
                    implementation=label,
                    gate=gate,
                    fault=_first_sentence(function),
                    mirrors=mirrors,
                    severity=severity,
                    worlds=worlds,
                    status=status,
                    cheat=cheat,
                    only=only,
                    luck=luck,
                    reset=getattr(function, "reset", None),
                )
            )
            return function

        return add

    def awkward(
        self, why: str, *, worlds: tuple[str, ...] = ALL, name: str | None = None, **settings: Any
    ) -> Callable[[F], F]:
        """Show a function as awkward and right."""

        def add(function: F) -> F:
            label = name or _name(function)
            self._add(label, function, worlds, settings)
            AWKWARD.append(Awkward(label, self.name, label, why, worlds, getattr(function, "reset", None)))
            return function

        return add

    def suite(self) -> Suite:
        """The finished room as a suite; call it last, as the argument of ``register``."""
        return Suite(name=self.name, implementations=self.implementations, **self.fields)

    def _add(self, label: str, function: Callable[..., Any], worlds: tuple[str, ...], settings: dict[str, Any]) -> None:
        of_contract = {key: value for key, value in settings.items() if key in Contract.__dataclass_fields__}
        others = {key: value for key, value in settings.items() if key not in of_contract}
        contract = replace(self.fields.get("contract", Contract()), **of_contract) if of_contract else None
        if label in self.implementations:
            raise ValueError(f"room {self.name} has two pieces named {label}")
        self.implementations[label] = Implementation(function, worlds=worlds, contract=contract, **others)


class State:
    """What a piece remembers between calls: attributes, all forgotten by ``reset``.

    Written as a class so that the museum can start each piece from nothing, as a new process would.
    """

    def __init__(self, **initial: Callable[[], Any]) -> None:
        self.__dict__["_initial"] = initial
        self.reset()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no state named {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def reset(self) -> None:
        for name, make in self._initial.items():
            self.__dict__[name] = make()


def restores(undo: Callable[[], None]) -> Callable[[F], F]:
    """Mark a function whose traces in the process ``undo`` removes."""

    def mark(function: F) -> F:
        function.reset = undo  # type: ignore[attr-defined]
        return function

    return mark


def remembers(state: State) -> Callable[[F], F]:
    """Mark a function as one that keeps ``state``."""

    return restores(state.reset)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _first_sentence(function: Callable[..., Any]) -> str:
    text = " ".join((inspect.getdoc(function) or "").split())
    if not text:
        raise ValueError(f"{_name(function)} needs a docstring that says what is wrong with it")
    head, dot, _ = text.partition(". ")
    return head.removesuffix(".") if dot else text.removesuffix(".")
