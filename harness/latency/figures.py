"""``python -m harness.latency.figures``: writes ``docs/latency-statistics.md`` from seeded simulations."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from harness.files import write_atomically
from harness.latency import judge, statistics
from harness.latency.simulate import (
    NOISE_BLOCKS,
    NOISY,
    QUIET,
    Noise,
    families,
    gate,
    plain_t,
    pooled_launches,
    process_medians,
    tree,
    trimmed_t,
    two_runs,
)

PAGE = Path("docs/latency-statistics.md")
CELLS = 10_000
TREE_RUNS = 6
CHANGES = (0.01, 0.02, 0.03, 0.05, 0.10)
FAMILY_CHANGES = (0.0, 0.005, 0.01, 0.02)
SEED = 20_261_201
CONTENDED = tuple(noise for noise in QUIET if noise.contended)

INTRODUCTION = f"""# What the latency gate would say when the truth is known

Simulated, not measured on a GPU: {CELLS:,} cells a row, judged by the very code that judges real ones
(`harness/latency`). Written by `python -m harness.latency.figures`; a test checks that this page is what it writes.

## The rule
A block is A B B A (A base, B head, one GPU, fresh process and buffers). Its number is log(B / A) of the medians.
A pass is {judge.BLOCKS} blocks, and {judge.BLOCKS} more if those do not decide. With a mean trimmed by
{statistics.TRIM:.0%} at each end, and its Student bounds, a pass says

- SLOWER: the one-sided {statistics.CONFIDENCE:.0%} bound is above zero in time and in clock cycles, and the median is
  above the cell's threshold. FASTER is the mirror image.
- SAME: the {statistics.EQUIVALENCE:.0%} interval lies within the margin on both sides.
- INCONCLUSIVE: neither.

The margin is the larger of {statistics.MIN_THRESHOLD:.1%} and {statistics.MIN_SECONDS * 1e6:.1f} us. The threshold is
the margin, or {statistics.NOISE_MULTIPLE:.0f} standard errors of the cell's own A/A blocks where that is more
({NOISE_BLOCKS} of them here). So SAME means the same in every cell, and a noisy cell is INCONCLUSIVE.

SLOWER and FASTER are only final when a second, independent pass says so by itself. Among many cells, Benjamini and
Hochberg's procedure chooses which ones get it. More than {judge.MAX_VOID:.0%} void blocks (throttled, contended, two
modes, clocks apart) are INVALID. Identical machine code and launch is SAME, and INVALID if timing insists.

## The model of a cell
An offset of each process, normal, with the standard deviation that names the row. The arms of a block share 90 % of
its variance, or half. Where blocks are contended, 5 % of them have one arm slowed by 5 to 15 %. The kernel takes
{QUIET[0].seconds * 1e6:.0f} us. What a GPU does is for its own A/A runs to say.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *_false_alarms(), *_power(), *_trimming(), *_many(), *_family(), *_others()])


def _false_alarms() -> Iterable[str]:
    yield "## Base against base: false alarms\n"
    yield from _table(
        ("noise", "called in the first pass", "**SLOWER or FASTER in the end**", "SAME", "INCONCLUSIVE", "blocks"),
        [
            (
                noise.name,
                _percent(rates.first_pass_alarms, 2),
                f"**{_percent(rates.alarms, 2)}**",
                _percent(rates.same),
                _percent(rates.inconclusive),
                f"{rates.blocks:.1f}",
            )
            for noise in QUIET + NOISY
            for rates in (gate(noise, 0.0, CELLS, SEED),)
        ],
    )


def _power() -> Iterable[str]:
    yield "## Slower heads: called SLOWER / SAME\n"
    rows = []
    for noise in QUIET + NOISY:
        found = [gate(noise, change, CELLS, SEED + 1 + i) for i, change in enumerate(CHANGES)]
        rows.append(
            (noise.name, *(f"{_percent(r.slower)} / {_percent(r.same)}" for r in found), f"{found[2].blocks:.1f}")
        )
    yield from _table(("noise", *(f"+{change:.0%}" for change in CHANGES), "blocks at +3%"), rows)
    yield (
        "+1 % is within the margin of any one cell by design: it is SAME here, and a matter for the family below. "
        "What cannot be told from noise is INCONCLUSIVE.\n"
    )


def _trimming() -> Iterable[str]:
    yield "## Why trimmed: one pass of 8 blocks, called SLOWER\n"
    rows = [
        (
            noise.name,
            *(_percent(rule(noise, change, CELLS, SEED)) for change in (0.02, 0.03) for rule in (plain_t, trimmed_t)),
        )
        for noise in CONTENDED
    ]
    yield from _table(("noise", "+2%, plain t", "+2%, trimmed", "+3%, plain t", "+3%, trimmed"), rows)


def _many() -> Iterable[str]:
    yield f"## Many cells at once: {TREE_RUNS} runs of 45 unchanged cells and 5 that are 3 % slower\n"
    rows = []
    for noise in (*CONTENDED, NOISY[0]):
        rng = np.random.default_rng(SEED)
        runs = [tree(noise, [0.0] * 45 + [0.03] * 5, rng) for _ in range(TREE_RUNS)]
        unchanged = Counter(outcome for run in runs for outcome in run[:45])
        slower = Counter(outcome for run in runs for outcome in run[45:])
        rows.append((noise.name, _counts(unchanged), _counts(slower)))
    yield from _table(("noise", "unchanged", "3 % slower"), rows)


def _family() -> Iterable[str]:
    yield "## A family of 12 cells, first passes only: its geometric mean called SLOWER\n"
    rows = [
        (noise.name, *(_percent(families(noise, change, 12, 200, SEED)[0]) for change in FAMILY_CHANGES))
        for noise in (QUIET[1], QUIET[3], NOISY[0])
    ]
    yield from _table(("noise", "unchanged", "all +0.5%", "all +1%", "all +2%"), rows)
    yield f"The lower bound of the mean must exceed {judge.FAMILY_FLOOR:.1%}.\n"


def _others() -> Iterable[str]:
    yield "## Other rules on the same noise: false alarms, and +3 % found\n"
    rules: Sequence[tuple[str, Callable[[Noise, float], float]]] = (
        ("one run of each, medians 5 % apart", lambda noise, change: two_runs(noise, change, CELLS, SEED)),
        (
            "all launches of 7 processes pooled, Mann-Whitney p < 0.002",
            lambda noise, change: pooled_launches(noise, change, 500, SEED),
        ),
        (
            "8 process medians, p < 0.002 and 5 % apart (stored baselines)",
            lambda noise, change: process_medians(noise, change, CELLS, SEED),
        ),
        ("this gate", lambda noise, change: (lambda r: r.slower + r.faster)(gate(noise, change, CELLS, SEED))),
    )
    noises = (QUIET[0], QUIET[2], NOISY[0])
    rows = [
        (name, *(f"{_percent(rule(noise, 0.0), 2)} / {_percent(rule(noise, 0.03))}" for noise in noises))
        for name, rule in rules
    ]
    yield from _table(("rule", *(noise.name for noise in noises)), rows)
    yield (
        "Pooled launches are not independent, so the test finds the processes' offsets and calls them a change. "
        "Stored baselines compare different times, share nothing, and are good for 5 % and more.\n"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def _counts(counter: Counter[judge.Outcome]) -> str:
    return ", ".join(f"{counter[outcome]} {outcome}" for outcome in judge.Outcome if counter[outcome])


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or with ``--check`` exit 1 if it would change."""
    parser = argparse.ArgumentParser(prog="python -m harness.latency.figures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is out of date")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    text = page()
    if options.check:
        return int(not options.page.exists() or options.page.read_text() != text)
    write_atomically(options.page, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
