"""What a museum shows, and how it is found."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from harness.gates import GATES
from harness.verdict import Status

SEVERITIES = ("low", "medium", "high", "critical")


@dataclass(frozen=True)
class Exhibit:
    """One planted fault: ``implementation`` of ``suite``, and the gate that must fail it.

    ``kind`` is its place in a taxonomy of faults, ``mirrors`` the public reports it follows, ``worlds`` those where
    ``gate`` must find it. ``status`` is INVALID where the fault lies in the suite itself, whose verdicts then cannot
    be trusted. ``only`` limits the gates that are run on it (a fault that ends or hangs the process costs a process
    each). ``reset`` forgets what the implementation remembers, so that one run does not spoil the next. ``luck``: what
    other gates and the practices say depends on what memory holds, on addresses or on timing.
    """

    name: str
    kind: str
    suite: str
    implementation: str
    gate: str
    fault: str
    mirrors: str = ""
    severity: str = "high"
    worlds: tuple[str, ...] = ("cpu", "cuda")
    status: Status = Status.FAIL
    cheat: bool = False
    only: tuple[str, ...] = ()
    reset: Callable[[], None] | None = None
    luck: bool = False

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"exhibit {self.name}: severity {self.severity!r} is none of {', '.join(SEVERITIES)}")
        if self.gate not in GATES:
            raise ValueError(f"exhibit {self.name}: no gate is called {self.gate!r}")
        if not self.worlds:
            raise ValueError(f"exhibit {self.name}: no world can show it")


@dataclass(frozen=True)
class Awkward:
    """A correct implementation that looks suspicious: no gate may fail it. ``why`` says what is legal about it."""

    name: str
    suite: str
    implementation: str
    why: str
    worlds: tuple[str, ...] = ("cpu", "fake-cuda", "cuda")
    reset: Callable[[], None] | None = None


@dataclass(frozen=True)
class Museum:
    """Faults that must be caught, and awkward implementations that must not."""

    exhibits: tuple[Exhibit, ...]
    awkward: tuple[Awkward, ...]

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.exhibits] + [entry.name for entry in self.awkward]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"shown twice: {', '.join(repeated)}")

    def select(self, *, worlds: Iterable[str] = (), kinds: Iterable[str] = (), names: Iterable[str] = ()) -> Museum:
        """What of it can be shown in one of these worlds, is of these kinds and has these names (empty: all).

        Awkward implementations have no kind, so asking for kinds leaves them out.
        """
        worlds, kinds, names = set(worlds), set(kinds), set(names)
        return Museum(
            tuple(
                entry
                for entry in self.exhibits
                if (not worlds or worlds & set(entry.worlds))
                and (not kinds or entry.kind in kinds)
                and (not names or entry.name in names)
            ),
            tuple(
                entry
                for entry in self.awkward
                if (not worlds or worlds & set(entry.worlds)) and not kinds and (not names or entry.name in names)
            ),
        )


def open_museum(path: Path | str) -> Museum:
    """The museum at a path: a package folder or a file that defines EXHIBITS and AWKWARD.

    Raises FileNotFoundError for a path that does not exist and ValueError for one that shows nothing.
    """
    path = Path(path).resolve()
    file = path / "museum.py" if path.is_dir() else path
    if not file.exists():
        raise FileNotFoundError(f"no museum at {path} (expected a folder with a museum.py, or a file)")
    module = _import(file)
    try:
        museum = Museum(tuple(module.EXHIBITS), tuple(module.AWKWARD))
    except AttributeError as error:
        raise ValueError(f"{file} must define EXHIBITS and AWKWARD: {error}") from error
    if not museum.exhibits:
        raise ValueError(f"{file} shows nothing")
    return museum


def _import(file: Path) -> ModuleType:
    """Import a file under its dotted package name, as an ordinary import of it elsewhere would."""
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(".".join(parts))
