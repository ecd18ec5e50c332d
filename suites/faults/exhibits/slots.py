"""Index metadata: padding used as an index, rows past the table, units mixed up, 64-bit slots half written."""

from __future__ import annotations

import torch

from harness import Case, Contract, Draw, Inputs, grid, register
from suites.faults.operations import BLOCK, slot_inputs, slot_reference, slots
from suites.faults.rooms import ALL, Room

ROOM = Room(
    "museum_slots",
    doc="cache slot of each token through a block table; -1 for padding and for what lies past the table",
    inputs=slot_inputs,
    reference=slot_reference,
    cases=grid(m=[61, 1, 16], requests=5, width=7, dtype="i32"),
    contract=Contract(rows=("request", "position")),
)


@ROOM.awkward("the right lookup: clamp, look up, replace", worlds=ALL)
def slots_plain(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return slots(table, request, position)


@ROOM.fault("K22", gate="correctness", mirrors="vllm#32175, sglang#32771", severity="critical")
def slots_minus_one_wraps(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """-1 is used as an index: Python's last block, a negative address on a GPU."""
    column = torch.div(position.long(), BLOCK, rounding_mode="floor").clamp(max=table.shape[1] - 1)
    found = table[request.long(), column].long() * BLOCK + position.long() % BLOCK
    return torch.where(position < table.shape[1] * BLOCK, found, -1)


@ROOM.fault("K22", gate="correctness", mirrors="vllm#55636", severity="critical")
def slots_past_table_clamped(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """A position past the table is clamped to its last block: a valid slot that belongs to other tokens."""
    column = torch.div(position.long(), BLOCK, rounding_mode="floor").clamp(0, table.shape[1] - 1)
    found = table[request.long(), column].long() * BLOCK + position.long() % BLOCK
    return torch.where(position >= 0, found, -1)


@ROOM.fault("K22", gate="correctness", mirrors="vllm#43988", severity="critical")
def slots_wrong_unit(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """The block's size is taken in other units: offsets inside a block count twice as far."""
    right = slots(table, request, position)
    inside = position.long() % BLOCK
    return torch.where(right >= 0, right + inside // 2 * 2 - inside, right)


@ROOM.fault("K22", gate="correctness", mirrors="public commit log", severity="critical")
def slots_identity_table(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """The block table is not consulted: right for as long as blocks are handed out in order."""
    right = slots(table, request, position)
    return torch.where(right >= 0, request.long() * table.shape[1] * BLOCK + position.long(), right)


@ROOM.fault("K22", gate="correctness", mirrors="ATOM#1591", severity="high")
def slots_only_first_blocks(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """A hard-coded capacity: positions past 32 are taken for padding (short tests never get there)."""
    return torch.where(position < 32, slots(table, request, position), -1)


@ROOM.fault("K22", gate="correctness", mirrors="vllm#25945", severity="medium")
def slots_padding_is_zero(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Padding is written as slot 0, which is somebody's slot."""
    return slots(table, request, position).clamp(min=0)


@ROOM.fault("K22", gate="arguments", mirrors="vllm#55636: row pitch of the block table", severity="critical")
def slots_table_pitch(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """The row pitch of the table is taken to be its width: wrong for a slice of a wider table."""
    if table.untyped_storage().nbytes() // table.element_size() - table.storage_offset() >= table.numel():
        table = table.as_strided(table.shape, (table.shape[1], 1), table.storage_offset())
    return slots(table, request, position)


@ROOM.fault("K12", gate="coverage", mirrors="vllm#55147", severity="critical", luck=True)
def slots_low_words_only(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """32-bit slots are written into a 64-bit buffer: the upper half of each is what was there."""
    right = slots(table, request, position)
    out = torch.empty(right.shape, dtype=torch.int64, device=right.device)
    out.view(torch.int32)[0::2] = right.to(torch.int32)
    return out


@ROOM.fault("K12", gate="coverage", mirrors="vllm#39645", severity="high", luck=True)
def slots_padding_unwritten(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Padding rows are skipped, and keep what the buffer held."""
    right = slots(table, request, position)
    out = torch.empty_like(right)
    valid = right >= 0
    out[valid] = right[valid]
    return out


@ROOM.fault("K03", gate="correctness", mirrors="FreeToken#186, fla#1080", severity="critical")
def slots_eight_bits(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Slots pass through 8 bits: right for as long as the cache is small."""
    right = slots(table, request, position)
    return torch.where(right >= 0, right % 256, right)


@ROOM.fault("K16", gate="arguments", mirrors="vllm#38352, sglang#25380", severity="high")
def slots_ids_as_words(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Ids of 64 bits are read as 32-bit words."""
    words = request.contiguous().view(torch.int32)[: request.shape[0]]
    return slots(table, words, position)


@ROOM.awkward("64-bit arithmetic throughout, and a table that is flattened first", worlds=ALL)
def slots_flat_table(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    slots(table[:1], request[:0], position[:0])  # refuses other dtypes by name
    column = torch.div(position.long(), BLOCK, rounding_mode="floor")
    inside = (position >= 0) & (column < table.shape[1])
    flat = table.contiguous().view(-1).long()
    block = flat.index_select(0, torch.where(inside, request.long() * table.shape[1] + column, 0))
    return torch.where(inside, block * BLOCK + position.long() % BLOCK, -1)


register(ROOM.suite())


# -- top-k of short rows

K = 6


def _scores(case: Case, draw: Draw) -> Inputs:
    """Scores and how many of each row are valid, from none to all; every fourth row is tied."""
    scores = draw.tensor(case["m"], case["n"], dtype="fp32")
    scores[::4] = 0.5
    return {"scores": scores, "lengths": draw.integers(0, case["n"] + 1, case["m"], dtype="i32", name="lengths")}


def _topk_reference(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Sorted indices of the K largest valid scores, ties to the smaller index, then -1."""
    rows = []
    for row, length in zip(scores.tolist(), lengths.tolist(), strict=True):
        order = sorted(range(max(0, length)), key=lambda i: (-row[i], i))[:K]
        rows.append(sorted(order) + [-1] * (K - len(order)))
    return torch.tensor(rows, dtype=torch.int64, device=scores.device).reshape(scores.shape[0], K)


TOP = Room(
    "museum_topk",
    doc="indices of the K largest valid scores of each row, sorted, padded with -1",
    inputs=_scores,
    reference=_topk_reference,
    cases=grid(m=[33, 1], n=20, dtype="fp32"),
    contract=Contract(rows=("scores", "lengths")),
)


def _topk(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    if not scores.is_floating_point() or lengths.is_floating_point():
        raise TypeError("scores must be floating-point and lengths integers")
    n = scores.shape[1]
    column = torch.arange(n, device=scores.device)
    valid = column < lengths.unsqueeze(1)
    order = torch.where(valid, scores, -torch.inf).argsort(dim=1, descending=True, stable=True)[:, :K]
    kept = torch.arange(K, device=scores.device) < lengths.unsqueeze(1)
    ids = torch.where(kept, order, n).sort(dim=1).values
    return torch.where(ids < n, ids, -1)


@TOP.awkward("a stable sort of everything, ties to the smaller index", worlds=ALL)
def topk_plain(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return _topk(scores, lengths)


@TOP.fault("K22", gate="correctness", mirrors="Automodel#3035", severity="high")
def topk_short_rows_not_padded(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Rows shorter than K keep indices of invalid scores."""
    return _topk(scores, lengths.clamp(min=K))


@TOP.fault("K22", gate="correctness", mirrors="vllm#39593", severity="critical")
def topk_duplicates_on_ties(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The maximum is found K times and not removed where scores are tied: one index, K times."""
    right = _topk(scores, lengths)
    tied = (scores == scores[:, :1]).all(1, keepdim=True)
    return torch.where(tied & (right >= 0), right[:, :1], right)


@TOP.fault("K22", gate="correctness", mirrors="vllm#51970", severity="critical")
def topk_zero_length_is_one(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """A row of length 0 is treated as one of length 1."""
    return _topk(scores, lengths.clamp(min=1))


@TOP.fault("K22", gate="correctness", mirrors="off by one at the boundary k = length", severity="high")
def topk_last_valid_excluded(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The last valid score is never looked at."""
    return _topk(scores, torch.where(lengths > K, lengths - 1, lengths))


register(TOP.suite())
