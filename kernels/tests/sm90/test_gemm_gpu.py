"""The grouped GEMM on a Hopper GPU, against fp64 products of the exact operands."""

import itertools

import pytest
import torch

from kernels.sm90 import gemm
from kernels.sm90.weights import interleave_rows, shuffle_weights
from kernels.tests.sm90 import support
from kernels.tests.sm90.support import Operand, accumulation_bound, assert_within, grouped_reference, offsets_of

pytestmark = support.gpu
TILES = gemm.TILES


def activations(rows: int, k: int, seed: int) -> torch.Tensor:
    g = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(rows, k, device="cuda", generator=g).to(torch.bfloat16)


def poisoned(rows: int, width: int, value: float) -> torch.Tensor:
    return torch.full((rows, width), value, dtype=torch.bfloat16, device="cuda")


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("tokens", [1, 2, 8, 9, 17, 64, 65, 127, 128, 129, 300])
@pytest.mark.parametrize(("n", "k"), [(64, 128), (256, 1024), (576, 288), (1536, 2048)])
def test_linear(tile: str, tokens: int, n: int, k: int) -> None:
    w = Operand.random(1, n, k, seed=tokens + n)
    x = activations(tokens, k, seed=k + tokens)
    ref, mass = grouped_reference(x, w, [tokens])
    weights = shuffle_weights(w.codes, w.scales)
    outs = [gemm.linear(x, weights, w.alpha, tile=tile, out=poisoned(tokens, n, p)) for p in (float("nan"), 7.0)]
    assert torch.equal(outs[0], outs[1])
    assert_within(outs[0], ref, accumulation_bound(mass, k))


COUNTS = {
    "one_each": [1] * 8,
    "empty_ends": [0, 0, 5, 0, 33, 64, 0, 0],
    "one_expert": [0, 0, 0, 200, 0, 0, 0, 0],
    "skewed": [1, 127, 128, 129, 0, 3, 40, 16],
    "many": [65, 66, 67, 130, 131, 1, 257, 90],
}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("all_scales", [False, True])
def test_grouped(tile: str, name: str, all_scales: bool) -> None:
    counts, n, k = COUNTS[name], 320, 1152
    w = Operand.random(len(counts), n, k, seed=3, all_scales=all_scales)
    x = activations(sum(counts), k, seed=11)
    ref, mass = grouped_reference(x, w, counts)
    out = gemm.grouped_gemm(
        x, shuffle_weights(w.codes, w.scales), offsets_of(counts), w.alpha, tile=tile,
        out=poisoned(sum(counts), n, float("nan")),
    )  # fmt: skip
    assert_within(out, ref, accumulation_bound(mass, k))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", COUNTS)
def test_fused_swiglu(tile: str, name: str) -> None:
    counts, inter, k, limit = COUNTS[name], 160, 1024, 10.0
    w = Operand.random(len(counts), 2 * inter, k, seed=4, gain=40.0)  # so that the clamp matters
    x = activations(sum(counts), k, seed=12)
    ref, mass = grouped_reference(x, w, counts)
    want, bound = support.swiglu_reference(ref, accumulation_bound(mass, k), limit)
    weights = shuffle_weights(interleave_rows(w.codes), interleave_rows(w.scales), kind="swiglu")
    out = gemm.grouped_gemm(
        x, weights, offsets_of(counts), w.alpha, swiglu_limit=limit, tile=tile,
        out=poisoned(sum(counts), inter, float("nan")),
    )  # fmt: skip
    assert_within(out, want, bound)
    assert float((ref.abs() > limit).double().mean()) > 0.01


def test_rows_of_no_group_are_not_written() -> None:
    w = Operand.random(2, 64, 128, seed=1)
    x, out = activations(10, 128, seed=1), poisoned(10, 64, 5.0)
    offsets = torch.tensor([2, 4, 7], dtype=torch.int32, device="cuda")
    gemm.grouped_gemm(x, shuffle_weights(w.codes, w.scales), offsets, w.alpha, out=out)
    assert bool((out[:2] == 5).all())
    assert bool((out[7:] == 5).all())
    assert bool((out[2:7] != 5).any())


def test_no_tokens() -> None:
    w = Operand.random(1, 64, 128, seed=1)
    out = gemm.linear(activations(0, 128, seed=1), shuffle_weights(w.codes, w.scales), w.alpha)
    assert out.shape == (0, 64)


@pytest.mark.parametrize("tile", TILES)
def test_repeats_are_bitwise_equal(tile: str) -> None:
    """Split-K adds parts in a fixed order, whoever comes last."""
    w = Operand.random(3, 512, 4096, seed=9)
    counts = [3, 40, 9]
    x, weights = activations(sum(counts), 4096, seed=2), shuffle_weights(w.codes, w.scales)
    first = gemm.grouped_gemm(x, weights, offsets_of(counts), w.alpha, tile=tile)
    for _ in range(50):
        assert torch.equal(gemm.grouped_gemm(x, weights, offsets_of(counts), w.alpha, tile=tile), first)


@pytest.mark.parametrize("tile", TILES)
def test_graph_replays_with_other_routing(tile: str) -> None:
    n, k, rows = 320, 1024, 200
    w = Operand.random(8, n, k, seed=6)
    weights, x, offsets = shuffle_weights(w.codes, w.scales), activations(rows, k, seed=1), offsets_of([25] * 8)
    out = poisoned(rows, n, float("nan"))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gemm.grouped_gemm(x, weights, offsets, w.alpha, tile=tile, out=out)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        gemm.grouped_gemm(x, weights, offsets, w.alpha, tile=tile, out=out)
    for seed, counts in enumerate(([25] * 8, [0, 200, 0, 0, 0, 0, 0, 0], [1, 0, 64, 65, 2, 3, 5, 60])):
        x.copy_(activations(rows, k, seed=100 + seed))
        offsets.copy_(offsets_of(counts))
        out.fill_(float("nan"))
        graph.replay()
        ref, mass = grouped_reference(x, w, counts)
        assert_within(out, ref, accumulation_bound(mass, k))
        assert torch.equal(out, gemm.grouped_gemm(x, weights, offsets, w.alpha, tile=tile))


def test_full_size_v4_flash_l2() -> None:
    """A real shape: 32 experts, (4096, 2048), every residue of tokens a tile can have."""
    counts = [*range(0, 62, 2), 150]
    w = Operand.random(32, 4096, 2048, seed=8)
    x, weights = activations(sum(counts), 2048, seed=5), shuffle_weights(w.codes, w.scales)
    ref, mass = grouped_reference(x, w, counts)
    for tile in TILES:
        out = gemm.grouped_gemm(x, weights, offsets_of(counts), w.alpha, tile=tile)
        assert_within(out, ref, accumulation_bound(mass, 2048))


def test_bad_arguments_are_refused() -> None:
    w = Operand.random(2, 64, 128, seed=1)
    weights, x, offsets = shuffle_weights(w.codes, w.scales), activations(4, 128, seed=1), offsets_of([2, 2])
    for bad in itertools.chain(
        [(x.half(), weights, offsets, w.alpha), (x[:, ::2], weights, offsets, w.alpha)],
        [(x, weights, offsets.long(), w.alpha), (x, weights, offsets[:2], w.alpha)],
        [(x, weights, offsets, w.alpha.double())],
    ):
        with pytest.raises(ValueError, match="expected"):
            gemm.grouped_gemm(*bad)
