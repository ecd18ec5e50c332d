"""The one registry: suites by name, and where each was declared.

A suite file is plain Python that calls ``register(Suite(...))``. It is found by path
(``harness gate --suite path/to/suite_my_kernel.py``), in a folder of ``suite_*.py`` files, or through an entry
point of the group ``kernel_harness.suites`` in an installed package.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from harness.suite import Suite

ENTRY_POINTS = "kernel_harness.suites"


@dataclass(frozen=True)
class Registered:
    """A suite and the file that declared it: a fresh process loads that file to run a trial of it."""

    suite: Suite
    path: Path


_suites: dict[str, Registered] = {}


def register(suite: Suite) -> Suite:
    """Make a suite known under its name. Declaring a name again from another file is an error."""
    path = Path(sys._getframe(1).f_code.co_filename).resolve()
    known = _suites.get(suite.name)
    if known is not None and known.path != path:
        raise ValueError(f"suite {suite.name!r} is declared in {known.path} and again in {path}; rename one")
    _suites[suite.name] = Registered(suite, path)
    return suite


def registered() -> dict[str, Registered]:
    """All suites loaded so far, by name."""
    return dict(_suites)


def lookup(name: str) -> Registered:
    """The suite of this name; KeyError that lists the known ones otherwise."""
    try:
        return _suites[name]
    except KeyError:
        known = ", ".join(sorted(_suites)) or "none"
        raise KeyError(f"no suite named {name!r}; known suites: {known}") from None


def load(path: Path | str) -> list[str]:
    """Load a suite file, or every ``suite_*.py`` below a folder; returns the names of the suites declared there.

    Raises FileNotFoundError for a path that does not exist, and ValueError for one that declares no suite or
    cannot be loaded.
    """
    path = Path(path).resolve()
    if not path.exists():
        raise FileNotFoundError(f"no such suite file or folder: {path}")
    files = sorted(path.rglob("suite_*.py")) if path.is_dir() else [path]
    for file in files:
        _import(file)
    names = [name for name, entry in _suites.items() if entry.path in set(files)]
    if not names:
        where = f"no suite_*.py with a suite below {path}" if path.is_dir() else f"{path} registers no suite"
        raise ValueError(f"{where}; a suite file calls harness.register(harness.Suite(...))")
    return names


def load_entry_points() -> list[str]:
    """Load the suites that installed packages offer (entry points of the group ``kernel_harness.suites``)."""
    names = []
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        before = set(_suites)
        entry.load()
        names += sorted(set(_suites) - before)
    return names


def _import(file: Path) -> None:
    name, root = _module_name(file)
    if name in sys.modules:
        return
    if root is not None and str(root) not in sys.path:
        sys.path.insert(0, str(root))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"cannot load {_place(error, file)}: {type(error).__name__}: {error}") from error
    except BaseException:
        del sys.modules[name]
        raise


def _place(error: Exception, file: Path) -> str:
    """``FILE:LINE``: the last line of the suite file that the error came through."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or file}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"{file}:{lines[-1]}" if lines else str(file)


def _module_name(file: Path) -> tuple[str, Path | None]:
    """Dotted name and import root of a file inside packages (``suites.suite_x``), else a name unique to its path.

    A file inside a package must be loaded under its package name, or ``from suites import ...`` in another file
    would run it a second time.
    """
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    if len(parts) > 1:
        return ".".join(parts), folder
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    return f"_suite_{file.stem}_{digest}", file.parent
