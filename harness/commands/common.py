"""What several commands share: finding suites, and the console."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from harness.registry import Registered, load, load_entry_points, lookup, registered

console = Console()
if not console.is_terminal:  # a log or a pipe: wide enough for the table, not rich's 80 columns
    console = Console(width=150)

DEFAULT_SUITES = Path("suites")


def find_suites(names: list[str]) -> list[Registered]:
    """The suites meant by ``--suite`` values: names, files or folders.

    Without any: all of ``./suites`` when there is such a folder, and of installed packages. Raises ValueError when
    that finds none, KeyError for an unknown name.
    """
    paths = [name for name in names if name.endswith(".py") or Path(name).is_dir()]
    wanted = [name for name in names if name not in paths]
    chosen = [suite for path in paths for suite in load(path)]
    if wanted or not names:
        if DEFAULT_SUITES.is_dir():
            load(DEFAULT_SUITES)
        load_entry_points()
    if not names:
        chosen = list(registered())
    if not names and not chosen:
        raise ValueError(
            "no suites found: there is no folder ./suites here and no installed package offers any; "
            "name a file with --suite path/to/suite_my_kernel.py"
        )
    return [lookup(name) for name in dict.fromkeys([*chosen, *wanted])]
