"""The kill matrix: which gate caught which exhibit, on a terminal and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.table import Table

from harness.museum.exhibit import Awkward, Exhibit
from harness.museum.judged import Judged
from harness.museum.practices import PRACTICES

_INTRO = """\
# The museum of planted faults

Every exhibit is an ordinary implementation with one fault that somebody has reported in public; the gates know
nothing of the museum. *Caught by* lists every gate that failed it, the one that must is in bold. The last columns say
what three common checks answer on the same implementation: `torch.allclose` with its defaults on one normal draw, a
cosine of at least 0.98, and the KernelBench protocol (five normal draws, atol = rtol = 1e-2). *accepts* means that
the fault would have been merged; *-* that the check cannot be asked (it ends the process, or needs a GPU). *luck*
stands where the answer depends on what memory happens to hold, on addresses or on timing; such exhibits show the
expected gate only, and are left out of the practices' totals.

Made by `{command}`.
"""


def counts(judged: Sequence[Judged]) -> list[str]:
    """The lines that sum a run up: exhibits caught, awkward ones passed, practices beside them."""
    exhibits = [j for j in judged if isinstance(j.piece, Exhibit)]
    awkward = [j for j in judged if isinstance(j.piece, Awkward)]
    names = {j.piece.name for j in exhibits}
    kinds = {j.piece.kind for j in exhibits if isinstance(j.piece, Exhibit)}
    cheats = {j.piece.name for j in exhibits if isinstance(j.piece, Exhibit) and j.piece.cheat}
    lines = [
        f"{sum(j.as_expected for j in exhibits)} of {len(exhibits)} exhibits caught by the expected gate "
        f"({len(names)} faults of {len(kinds)} kinds, {len(cheats)} of them cheats)",
        f"{sum(j.as_expected for j in awkward)} of {len(awkward)} awkward but correct ones passed "
        f"({len({j.piece.name for j in awkward})} implementations)",
    ]
    for practice in PRACTICES:
        asked = [j for j in exhibits if practice in j.practices and not _luck(j)]
        missed = sum(j.practices[practice] == "accepts" for j in asked)
        if asked:
            lines.append(f"{practice} accepts {missed} of the {len(asked)} faulty ones it was shown")
    return lines


def terminal(judged: Sequence[Judged]) -> Table:
    """One row a piece and world; what went otherwise than expected is red."""
    table = Table("kind", "piece", "world", "caught by", "expected", *PRACTICES)
    for j in judged:
        style = "" if j.as_expected else "bold red"
        answers = [j.practices.get(name, "-") for name in PRACTICES]
        kind, expected = _kind(j), j.piece.gate if isinstance(j.piece, Exhibit) else "nothing"
        table.add_row(kind, j.piece.name, j.world, ", ".join(j.caught_by) or "nothing", expected, *answers, style=style)
    return table


def markdown(judged: Sequence[Judged], command: str) -> str:
    """The page: totals, one table a kind, the awkward ones, and how gates and kinds meet."""
    lines = [_INTRO.format(command=command), *(f"- {line}" for line in counts(judged)), ""]
    exhibits = [j for j in judged if isinstance(j.piece, Exhibit)]
    lines += ["## Kinds and gates", "", *_by_gate(exhibits), "", "## Exhibits", ""]
    head = ["exhibit", "fault", "severity", "mirrors", "world", "caught by", *PRACTICES]
    for kind in sorted({_kind(j) for j in exhibits}):
        lines += [f"### {kind}", "", _row(head), _row(["---"] * len(head))]
        for j in (j for j in exhibits if _kind(j) == kind):
            assert isinstance(j.piece, Exhibit)
            piece = j.piece
            caught = ", ".join(f"**{gate}**" if gate == piece.gate else gate for gate in _steadily(j)) or "nothing"
            answers = ["luck" if _luck(j) else j.practices.get(name, "-") for name in PRACTICES]
            lines.append(
                _row([f"`{piece.name}`", piece.fault, piece.severity, piece.mirrors, j.world, caught, *answers])
            )
        lines.append("")
    lines += ["## Awkward and right", "", "No gate may fail these.", ""]
    lines += [_row(["implementation", "what is legal about it", "worlds", "verdict"]), _row(["---"] * 4)]
    awkward = [j for j in judged if isinstance(j.piece, Awkward)]
    for name in dict.fromkeys(j.piece.name for j in awkward):
        mine = [j for j in awkward if j.piece.name == name]
        shown = mine[0].piece
        assert isinstance(shown, Awkward)
        failed = {gate for j in mine for gate in j.caught_by}
        verdict = "passes" if all(j.as_expected for j in mine) else "FAILS " + ", ".join(sorted(failed))
        lines.append(_row([f"`{name}`", shown.why, ", ".join(j.world for j in mine), verdict]))
    return "\n".join(lines) + "\n"


def _by_gate(exhibits: Sequence[Judged]) -> Iterable[str]:
    gates = list(dict.fromkeys(v.gate for j in exhibits for v in j.verdicts))
    yield _row(["kind", "exhibits", *gates])
    yield _row(["---"] * (len(gates) + 2))
    for kind in sorted({_kind(j) for j in exhibits}):
        mine = [j for j in exhibits if _kind(j) == kind]
        caught = Counter(gate for j in mine for gate in _steadily(j))
        yield _row([kind, str(len(mine)), *(str(caught[gate] or "") for gate in gates)])


def _luck(judged: Judged) -> bool:
    return isinstance(judged.piece, Exhibit) and judged.piece.luck


def _steadily(judged: Judged) -> tuple[str, ...]:
    """The gates that notice it in every run."""
    piece = judged.piece
    if not (isinstance(piece, Exhibit) and piece.luck):
        return judged.caught_by
    return tuple(gate for gate in judged.caught_by if gate == piece.gate)


def _kind(judged: Judged) -> str:
    return judged.piece.kind if isinstance(judged.piece, Exhibit) else "right"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
