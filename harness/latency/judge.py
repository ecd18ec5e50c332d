"""The decision tree of the latency gate: from the blocks of a cell to one verdict.

    a pass is 8 blocks, and 8 more if those are INCONCLUSIVE
    first pass of every cell
      more than a quarter of the blocks void      -> INVALID
      SAME                                        -> SAME
      SLOWER or FASTER, and the cell stands out among all cells
          a second pass decides alone             -> SLOWER, FASTER, SAME or INCONCLUSIVE
      else                                        -> INCONCLUSIVE
    same machine code and launch on both sides    -> SAME; if timing disagrees, the machine is INVALID

The confirmation decides by itself because the first pass was looked at, extended and chosen from many: its error is
no longer the one its bound states. New blocks have none of that history.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from harness.latency.blocks import Blocks
from harness.latency.statistics import (
    CONFIDENCE,
    LEAST_BLOCKS,
    Call,
    Family,
    classify,
    family,
    first_pass_p,
    margin,
    noise_spread,
    selected,
    threshold,
    trimmed_mean,
)

BLOCKS = 8
"""Blocks of a pass, and of its one extension."""

LEAST_NOISE = 8
"""A/A blocks of a cell without which its noise counts as unknown, and no change of it can be called."""

MAX_VOID = 0.25
"""Share of void blocks beyond which a pass is INVALID: what is left may be the calm moments of a busy machine."""

FAMILY_FLOOR = 0.005
"""A family is slower when the lower bound of its geometric mean exceeds this: a third of what one cell needs, since
what moves one kernel without a change of code moves another the other way."""


class Outcome(StrEnum):
    """The verdict on a cell or a family. INVALID and INCONCLUSIVE are never green."""

    SLOWER = "SLOWER"
    FASTER = "FASTER"
    SAME = "SAME"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


class Need(StrEnum):
    """What to measure next for a cell."""

    NOTHING = "nothing"
    EXTEND = "extend"
    CONFIRM = "confirm"


@dataclass(frozen=True)
class Cell:
    """One implementation on one case, base against head."""

    name: str
    first: Blocks
    noise: tuple[float, ...]
    """Log-ratios of A/A blocks of this cell on this machine: its threshold comes from them."""
    seconds: float
    """Median duration of the base."""
    confirmation: Blocks | None = None
    same_code: bool = False
    """Machine code and launch are identical on both sides (``checks.same_code``)."""

    @cached_property
    def spread(self) -> float:
        """Standard deviation of this cell's blocks, from its noise."""
        return float(noise_spread(self.noise)) if len(self.noise) >= LEAST_NOISE else math.inf

    def tau(self, blocks: Blocks) -> float:
        """Log-ratio that counts as a change, for this many blocks. Without known noise nothing does."""
        return float(threshold(self.spread, max(len(blocks.ratios), 1), self.seconds))

    def call(self, blocks: Blocks) -> Call:
        return Call(int(classify(blocks.ratios, self.tau(blocks), margin(self.seconds), blocks.cycles)))

    def add(self, need: Need, blocks: Blocks) -> Cell:
        """The cell with the blocks that were measured because ``needs`` asked for them."""
        if need is Need.EXTEND:
            return replace(self, first=self.first + blocks)
        return replace(self, confirmation=blocks if self.confirmation is None else self.confirmation + blocks)


@dataclass(frozen=True)
class CellVerdict:
    """The verdict of a cell with its figures: ratio B / A and its one-sided 99 % bounds, and the threshold."""

    name: str
    outcome: Outcome
    reason: str
    ratio: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    threshold: float = math.nan


def needs(cells: Sequence[Cell]) -> dict[str, Need]:
    """What each cell needs before it can be judged. Ask again after measuring; all NOTHING means done.

    Cells whose first pass calls a change are confirmed if they stand out among all cells; those that do not are
    extended like undecided ones.
    """
    valid = [cell for cell in cells if not _void(cell.first)]
    enough = [cell for cell in valid if len(cell.first.ratios) >= LEAST_BLOCKS]
    chosen = selected([float(first_pass_p(cell.first.ratios)) for cell in enough])
    standing_out = {cell.name for cell, stands_out in zip(enough, chosen, strict=True) if stands_out}
    answer = {cell.name: Need.NOTHING for cell in cells}
    for cell in valid:
        if cell.confirmation is not None:
            undecided = not _void(cell.confirmation) and cell.call(cell.confirmation) is Call.INCONCLUSIVE
            if undecided and not _extended(cell.confirmation):
                answer[cell.name] = Need.CONFIRM
            continue
        call = cell.call(cell.first)
        if call in (Call.SLOWER, Call.FASTER) and cell.name in standing_out:
            answer[cell.name] = Need.CONFIRM
        elif call is not Call.SAME and not _extended(cell.first):
            answer[cell.name] = Need.EXTEND
    return answer


def judge(cell: Cell) -> CellVerdict:
    """The verdict of a cell as far as it was measured; a change that nobody confirmed is INCONCLUSIVE."""
    measured = _measured(cell)
    if not cell.same_code or measured.outcome in (Outcome.SAME, Outcome.INVALID):
        return measured
    if measured.outcome is Outcome.INCONCLUSIVE:
        return replace(measured, outcome=Outcome.SAME, reason="machine code and launch are identical")
    return replace(
        measured,
        outcome=Outcome.INVALID,
        reason=f"identical machine code was timed {measured.outcome}: the machine, not the kernel, changed",
    )


def _measured(cell: Cell) -> CellVerdict:
    decisive = cell.confirmation or cell.first
    for blocks in filter(None, (cell.first, cell.confirmation)):
        void = _void(blocks)
        if void:
            return CellVerdict(cell.name, Outcome.INVALID, void)
    call, tau = cell.call(decisive), cell.tau(decisive)
    outcome, reason = Outcome[call.name], ""
    if len(decisive.ratios) < LEAST_BLOCKS:
        return CellVerdict(cell.name, outcome, f"only {len(decisive.ratios)} blocks", threshold=math.exp(tau))
    if call in (Call.SLOWER, Call.FASTER) and cell.confirmation is None:
        outcome, reason = Outcome.INCONCLUSIVE, f"{call.name} in the first pass, and not confirmed"
    elif call in (Call.SLOWER, Call.FASTER):
        reason = f"confirmed on {len(decisive.ratios)} new blocks"
    elif cell.confirmation is not None:
        reason = f"{cell.call(cell.first).name} in the first pass, {call.name} in the confirmation"
    elif call is Call.INCONCLUSIVE:
        reason = _undecided(cell, decisive)
    estimate = trimmed_mean(decisive.ratios)
    mean, half = float(estimate.mean), float(estimate.bound(CONFIDENCE))
    return CellVerdict(
        cell.name, outcome, reason, math.exp(mean), math.exp(mean - half), math.exp(mean + half), math.exp(tau)
    )


def _undecided(cell: Cell, blocks: Blocks) -> str:
    if cell.call(blocks) is not cell.call(replace(blocks, cycles=None)):
        return "a change in time that is none in clock cycles"
    return "the blocks scatter too much to tell" if _extended(blocks) else "the first blocks do not decide"


def judge_family(cells: Sequence[Cell]) -> tuple[Outcome, Family]:
    """The verdict on the geometric mean of a family, from the first passes of its cells (no cell picked out)."""
    usable = [cell.first for cell in cells if _void(cell.first) is None and len(cell.first.ratios) >= LEAST_BLOCKS]
    if not usable:
        return Outcome.INVALID, Family(math.nan, math.nan, math.nan, 0)
    result = family([np.asarray(blocks.ratios) for blocks in usable])
    if len(usable) < len(cells):
        return Outcome.INVALID, result
    limit = 1.0 + FAMILY_FLOOR
    if result.lower > limit:
        return Outcome.SLOWER, result
    if result.upper < 1.0 / limit:
        return Outcome.FASTER, result
    within = result.lower > 1.0 / (1.0 + 2 * FAMILY_FLOOR) and result.upper < 1.0 + 2 * FAMILY_FLOOR
    return (Outcome.SAME if within else Outcome.INCONCLUSIVE), result


def _extended(blocks: Blocks) -> bool:
    return blocks.measured >= 2 * BLOCKS


def _void(blocks: Blocks) -> str | None:
    if not blocks.measured:
        return "nothing was measured"
    if len(blocks.void) > MAX_VOID * blocks.measured:
        return f"{len(blocks.void)} of {blocks.measured} blocks are void: {blocks.void[0]}"
    return None
