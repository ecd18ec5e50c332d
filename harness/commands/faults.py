"""``harness faults``: show that the gates bite. Planted faults must be caught, awkward correct kernels must not."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.commands.common import console
from harness.files import write_atomically
from harness.museum.exhibit import Awkward, Exhibit, Museum, open_museum
from harness.museum.judged import Judged, judge
from harness.museum.matrix import counts, markdown, terminal
from harness.results import ResultFile
from harness.runner import Exit
from harness.worlds import WORLD_CLASSES

DEFAULT_MUSEUM = Path("suites/faults")


def faults(
    museum: Annotated[
        Path, typer.Option(help="Folder with a museum.py, or a file, that defines EXHIBITS and AWKWARD.")
    ] = DEFAULT_MUSEUM,
    world: Annotated[
        list[str] | None, typer.Option(help="cpu, fake-cuda or cuda; all of this machine by default.")
    ] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only faults of this kind, e.g. K04.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="Only this exhibit or awkward implementation.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all verdicts (JSON lines).")] = None,
    markdown_: Annotated[Path | None, typer.Option("--markdown", help="Write the kill matrix as Markdown.")] = None,
) -> None:
    """Run every exhibit through the gates; exit 0 when all are caught and nothing correct is, 1 otherwise."""
    worlds = _worlds(world or [])
    shown = open_museum(museum).select(worlds=worlds, kinds=kind or (), names=name or ())
    pieces = [(piece, place) for place in worlds for piece in _pieces(shown) if place in piece.worlds]
    if not pieces:
        console.print("nothing to show: no exhibit matches")
        raise typer.Exit(Exit.INVALID)
    results = ResultFile(json) if json is not None else None
    judged = _run(pieces, results)
    if results is not None:
        results.close()
    unexpected = [j for j in judged if not j.as_expected]
    console.print(terminal(judged))
    for j in unexpected:
        console.print(f"{j.piece.name} ({j.world}): {_unexpected(j)}", style="bold red")
    for line in counts(judged):
        console.print(line, highlight=False)
    if markdown_ is not None:
        write_atomically(markdown_, markdown(judged, _command(museum, worlds)).encode())
    raise typer.Exit(Exit.FAILED if unexpected else Exit.OK)


def _worlds(asked: list[str]) -> list[str]:
    unknown = sorted(set(asked) - set(WORLD_CLASSES))
    if unknown:
        raise ValueError(f"unknown world {', '.join(unknown)}; expected some of {', '.join(WORLD_CLASSES)}")
    reasons = {name: world().unavailable() for name, world in WORLD_CLASSES.items()}
    for place in asked:
        if reasons[place]:
            raise ValueError(f"world {place} is not here: {reasons[place]}")
    return [name for name in WORLD_CLASSES if (name in asked if asked else reasons[name] is None)]


def _pieces(museum: Museum) -> tuple[Exhibit | Awkward, ...]:
    return (*museum.exhibits, *museum.awkward)


def _run(pieces: list[tuple[Exhibit | Awkward, str]], results: ResultFile | None) -> list[Judged]:
    judged = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small tensors: more threads only wait for each other
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("exhibits", total=len(pieces))
            for piece, place in pieces:
                judged.append(judge(piece, place))
                for verdict in judged[-1].verdicts:
                    if results is not None:
                        results.write(verdict)
                progress.update(bar, advance=1, description=escape(piece.name))
    finally:
        torch.set_num_threads(threads)
    return judged


def _unexpected(j: Judged) -> str:
    if isinstance(j.piece, Exhibit):
        return f"expected {j.piece.status} by {j.piece.gate}, caught by {', '.join(j.caught_by) or 'nothing'}"
    return f"false alarm by {', '.join(j.caught_by) or 'nobody, but nothing was measured'}: {j.reason}"


def _command(museum: Path, worlds: list[str]) -> str:
    words = ["harness", "faults", *(word for place in worlds for word in ("--world", place))]
    if museum != DEFAULT_MUSEUM:
        words += ["--museum", str(museum)]
    return shlex.join(words)
