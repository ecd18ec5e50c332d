"""What several commands share: finding suites, and the console."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from harness.registry import Registered, load, load_entry_points, lookup, registered

# names and reasons hold brackets ("install nvidia-cutlass-dsl[cu13]") that are no markup
console = Console(markup=False, emoji=False)
if not console.is_terminal:  # a log or a pipe: wide enough for the table, not rich's 80 columns
    console = Console(width=150, markup=False, emoji=False)

DEFAULT_SUITES = Path("suites")


def find_suites(names: list[str]) -> list[Registered]:
    """The suites meant by ``--suite`` values: names, files, folders, or one suite of a file (``FILE::NAME``).

    Without any: all of ``./suites`` when there is such a folder, and of installed packages. Raises ValueError when
    that finds none, KeyError for an unknown name.
    """
    paths = [name for name in names if name.partition("::")[0].endswith(".py") or Path(name).is_dir()]
    wanted = [name for name in names if name not in paths]
    chosen = []
    for path, _, name in (path.partition("::") for path in paths):
        found = load(path)
        if name and name not in found:
            raise KeyError(f"{path} declares no suite {name!r}; it declares: {', '.join(found)}")
        chosen += [name] if name else found
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
