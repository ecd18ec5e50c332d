"""L1 row orders: exact round trips, and orders spelled out by hand on asymmetric data."""

from __future__ import annotations

import pytest
import torch

from kernels.moe.layouts import (
    CONVENTIONS,
    GRANULARITIES,
    L1Layout,
    convert_l1_weights,
    deinterleave_l1_weights,
    interleave_l1_weights,
    l1_row_order,
    pad_l1_weights,
    pad_l2_weights,
)

K = 48
DTYPES = (torch.float8_e4m3fn, torch.uint8)


def tagged(intermediate: int, experts: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights whose every code byte and scale byte differ by expert, half and row: gate odd, up even."""
    rows = torch.arange(2 * intermediate)
    tag = torch.where(rows < intermediate, 2 * rows + 1, 2 * (rows - intermediate))
    tag = (tag + 64 * torch.arange(experts)[:, None]) % 251
    codes = (tag[..., None] + torch.arange(K // 2)) % 251
    scales = (tag[..., None] + 3 * torch.arange(K // 16)) % 120
    return codes.to(torch.uint8), scales.to(torch.uint8).view(torch.float8_e4m3fn)


def by_hand(x: torch.Tensor, layout: L1Layout) -> torch.Tensor:
    """The order from its description, one row at a time."""
    rows = x.shape[-2]
    half = rows // 2
    gate, up = list(range(half)), list(range(half, rows))
    first, second = (gate, up) if layout.order == "gate_up" else (up, gate)
    size = layout.granularity or half
    order: list[int] = []
    for start in range(0, half, size):
        order += first[start : start + size] + second[start : start + size]
    if layout.shuffled:
        shuffled = list(order)
        for old in range(rows):
            shuffled[old // 32 * 32 + old % 32 % 4 * 8 + old % 32 // 4] = order[old]
        order = shuffled
    return torch.stack([x[..., row, :] for row in order], dim=-2)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("order", ["gate_up", "up_gate"])
def test_interleave_moves_weights_and_scales_together(granularity: int, order: str) -> None:
    codes, scales = tagged(192)
    got = interleave_l1_weights(codes, scales, granularity, order)
    # `order` only names the halves, so the first half leads in both orders.
    expected = L1Layout("gate_up", granularity)
    assert same(got[0], by_hand(codes, expected))
    assert same(got[1], by_hand(scales.view(torch.uint8), expected).view(scales.dtype))
    back = deinterleave_l1_weights(*got, granularity, order)
    assert same(back[0], codes)
    assert same(back[1], scales)
    assert all(part.is_contiguous() for part in (*got, *back))


@pytest.mark.parametrize("source", CONVENTIONS)
@pytest.mark.parametrize("target", CONVENTIONS)
def test_every_conversion_is_exact_and_undone(source: str, target: str) -> None:
    canonical = tagged(192)
    stored = convert_l1_weights(*canonical, "vllm_cutlass", source)
    moved = convert_l1_weights(*stored, source, target)
    direct = convert_l1_weights(*canonical, "vllm_cutlass", target)
    back = convert_l1_weights(*moved, target, source)
    for i in range(2):
        assert same(moved[i], direct[i])
        assert same(back[i], stored[i])


@pytest.mark.parametrize("name", CONVENTIONS)
def test_conventions_from_their_description(name: str) -> None:
    layout = CONVENTIONS[name]
    codes, scales = tagged(64)
    got = convert_l1_weights(codes, scales, "vllm_cutlass", name)
    if layout.k_first:
        assert got[0].shape == (2, K // 2, 128)
        assert got[0].stride(-2) == 1  # a view: memory stays K-major
        got = (got[0].transpose(-1, -2), got[1].transpose(-1, -2))
    assert same(got[0], by_hand(codes, layout))
    assert same(got[1], by_hand(scales.view(torch.uint8), layout).view(scales.dtype))
    assert torch.equal(l1_row_order(name, 64).sort().values, torch.arange(128))
    assert same(codes.index_select(1, l1_row_order(name, 64)), by_hand(codes, layout))


GOLDEN = {  # the first eight stored rows, I = 64: g is gate row, u is up row
    "vllm_cutlass": "g0 g1 g2 g3 g4 g5 g6 g7",
    "flashinfer_cutlass": "u0 u1 u2 u3 u4 u5 u6 u7",
    "flashinfer_cutedsl": "u0 u1 u2 u3 u4 u5 u6 u7",
    "gpt_oss": "g0 u0 g1 u1 g2 u2 g3 u3",
    "deepgemm": "g0 g1 g2 g3 g4 g5 g6 g7",
    "trtllm_gen": "u0 u2 u4 u6 u8 u10 u12 u14",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_first_rows(name: str) -> None:
    rows = [f"g{r}" if r < 64 else f"u{r - 64}" for r in l1_row_order(name, 64).tolist()]
    assert " ".join(rows[:8]) == GOLDEN[name]
    if name == "deepgemm":
        assert rows[8:17] == [f"u{i}" for i in range(8)] + ["g8"]
    if name == "trtllm_gen":
        assert rows[8:12] == ["g0", "g2", "g4", "g6"]


def test_padding_is_per_half() -> None:
    codes, scales = tagged(72)
    padded_codes, padded_scales = pad_l1_weights(codes, scales, 64)
    assert padded_codes.shape == (2, 256, K // 2)
    for half in range(2):
        assert same(padded_codes[:, 128 * half : 128 * half + 72], codes[:, 72 * half : 72 * half + 72])
        assert same(
            padded_scales.view(torch.uint8)[:, 128 * half : 128 * half + 72],
            scales.view(torch.uint8)[:, 72 * half : 72 * half + 72],
        )
        assert not padded_codes[:, 128 * half + 72 : 128 * half + 128].any()
        assert not padded_scales.view(torch.uint8)[:, 128 * half + 72 : 128 * half + 128].any()
    assert padded_scales.dtype == torch.float8_e4m3fn
    with pytest.raises(ValueError, match="pad_l1_weights"):
        interleave_l1_weights(codes, scales, 64)
    interleave_l1_weights(padded_codes, padded_scales, 64)


def test_l2_padding_adds_zero_columns() -> None:
    codes, scales = tagged(8)
    padded_codes, padded_scales = pad_l2_weights(codes, scales, 64)
    assert padded_codes.shape[-1] == 32
    assert padded_scales.shape[-1] == 4
    assert same(padded_codes[..., :24], codes)
    assert not padded_codes[..., 24:].any()
    assert not padded_scales.view(torch.uint8)[..., 3:].any()


def test_views_and_byte_scales_are_accepted() -> None:
    codes, scales = tagged(64, experts=4)
    got = interleave_l1_weights(codes[::2], scales.view(torch.uint8)[::2], 8)
    assert same(got[0], by_hand(codes[::2], L1Layout("gate_up", 8)))
    assert got[1].dtype == torch.uint8


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"granularity": 7}, ValueError, "granularity"),
        ({"order": "gate"}, ValueError, "order"),
        ({"scales": torch.zeros(2, 3, 128, dtype=torch.uint8)}, ValueError, "one scale for 16 elements"),
        ({"scales": torch.zeros(2, 128, 3)}, TypeError, "scales"),
        ({"codes": torch.zeros(2, 128, 24)}, TypeError, "packed uint8"),
    ],
)
def test_refusals(change: dict, error: type[Exception], message: str) -> None:
    codes, scales = tagged(64)
    arguments = {"codes": codes, "scales": scales, "granularity": 8, "order": "gate_up"} | change
    with pytest.raises(error, match=message):
        interleave_l1_weights(**arguments)


def test_unknown_convention() -> None:
    with pytest.raises(ValueError, match="vllm_cutlass"):
        convert_l1_weights(*tagged(64), "vllm", "deepgemm")
