"""Routing, gather, combine and the whole layer on a Hopper GPU."""

import pytest
import torch

from kernels import jit
from kernels.sm90 import moe
from kernels.sm90.warmup import warmup_fused_swiglu_compilation
from kernels.tests.sm90 import support
from kernels.tests.sm90.support import Operand

pytestmark = support.gpu


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("tokens", "top_k", "experts", "first"), [
    (1, 6, 48, 0), (7, 6, 48, 96), (64, 6, 32, 32), (300, 6, 384, 0), (2000, 6, 48, 48), (513, 1, 3, 1),
    (5, 8, 512, 0),
])  # fmt: skip
def test_route_and_gather(dtype: torch.dtype, tokens: int, top_k: int, experts: int, first: int) -> None:
    g = torch.Generator("cuda").manual_seed(tokens)
    ids = torch.randint(-1, 2 * experts + first, (tokens, top_k), device="cuda", generator=g, dtype=dtype)
    x = torch.randn(tokens, 72, device="cuda", generator=g).to(torch.bfloat16)
    rows, offsets, row_of_route = moe.route_and_gather(x, ids, experts, first)
    local = (ids.view(-1) - first).long()
    valid = (local >= 0) & (local < experts)
    order = torch.argsort(torch.where(valid, local, experts), stable=True)
    want_rows = torch.full((tokens * top_k,), -1, dtype=torch.int32, device="cuda")
    count = int(valid.sum())
    want_rows[order[:count]] = torch.arange(count, dtype=torch.int32, device="cuda")
    assert torch.equal(row_of_route, want_rows)
    counts = torch.bincount(local[valid], minlength=experts)
    assert torch.equal(offsets.long(), torch.cat((counts.new_zeros(1), counts.cumsum(0))))
    assert torch.equal(rows[:count], x[order[:count] // top_k])


def test_combine_in_order_of_choices() -> None:
    tokens, top_k, hidden = 50, 6, 4096
    rows = torch.randn(tokens * top_k, hidden, device="cuda").to(torch.bfloat16)
    where = torch.randperm(tokens * top_k, device="cuda", dtype=torch.int32)
    where[::7] = -1
    weights = torch.rand(tokens, top_k, device="cuda")
    total = torch.zeros(tokens, hidden, dtype=torch.float64, device="cuda")
    for j in range(top_k):
        row = where.view(tokens, top_k)[:, j].long()
        part = rows[row.clamp(min=0)].double() * weights[:, j : j + 1].double()
        total += torch.where((row >= 0).unsqueeze(1), part, 0.0)
    got = moe.combine(rows, where, weights)
    assert ((got.double() - total).abs() <= total.abs() * 2.0**-8 + 1e-5).all()


def small_layer(experts: int = 6, hidden: int = 512, inter: int = 256) -> tuple[moe.Experts, Operand, Operand]:
    l1, l2 = Operand.random(experts, 2 * inter, hidden, seed=1), Operand.random(experts, hidden, inter, seed=2)
    layer = moe.Experts.from_nvfp4((l1.codes, l1.scales, l1.alpha), (l2.codes, l2.scales, l2.alpha), first_expert=3)
    return layer, l1, l2


def layer_reference(x, weights, ids, l1, l2, first):  # fp64, with the two documented roundings to bf16
    y = torch.zeros(x.shape, dtype=torch.float64, device="cuda")
    for e in range(l1.codes.shape[0]):
        token, choice = torch.nonzero(ids == e + first, as_tuple=True)
        if len(token):
            up = x[token].double() @ l1.expert(e).T * l1.alpha[e].double()
            h, _ = support.swiglu_reference(up, torch.zeros_like(up), 10.0)
            o = (h.to(torch.bfloat16).double() @ l2.expert(e).T * l2.alpha[e].double()).to(torch.bfloat16).double()
            y.index_add_(0, token, o * weights[token, choice].double().unsqueeze(1))
    return y


@pytest.mark.parametrize("tokens", [1, 3, 16, 64, 129, 700])
def test_layer(tokens: int) -> None:
    layer, l1, l2 = small_layer()
    x = torch.randn(tokens, 512, device="cuda").to(torch.bfloat16)
    ids = torch.stack([torch.randperm(9, device="cuda")[:4] for _ in range(tokens)]).to(torch.int32)
    weights = torch.rand(tokens, 4, device="cuda")
    want = layer_reference(x, weights, ids, l1, l2, 3)
    got = layer.forward(x, weights, ids)
    error = (got.double() - want).norm() / want.norm()
    assert float(error) < 4e-3  # three roundings to bf16 of 2^-9 each, whichever way they fall
    assert torch.equal(got, layer.forward(x, weights, ids))


def test_layer_graph_follows_routing() -> None:
    layer, l1, l2 = small_layer()
    tokens = 33
    x = torch.randn(tokens, 512, device="cuda").to(torch.bfloat16)
    ids = torch.zeros(tokens, 4, dtype=torch.int32, device="cuda")
    weights = torch.rand(tokens, 4, device="cuda")
    layer.forward(x, weights, ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer.forward(x, weights, ids)
    for _ in range(3):
        x.copy_(torch.randn(tokens, 512, device="cuda"))
        ids.copy_(torch.stack([torch.randperm(9, device="cuda")[:4] for _ in range(tokens)]))
        weights.copy_(torch.rand(tokens, 4, device="cuda"))
        graph.replay()
        want = layer_reference(x, weights, ids, l1, l2, 3)
        assert float((y.double() - want).norm() / want.norm()) < 4e-3


def test_nothing_is_compiled_after_warm_up() -> None:
    warmup_fused_swiglu_compilation()
    layer, _, _ = small_layer()
    before = jit.compile_count()
    for tokens in (1, 5, 64, 300, 2000):
        x = torch.randn(tokens, 512, device="cuda").to(torch.bfloat16)
        ids = torch.randint(0, 9, (tokens, 4), dtype=torch.int32, device="cuda")
        layer.forward(x, torch.rand(tokens, 4, device="cuda"), ids)
    assert jit.compile_count() == before
    gemms = [s for s in moe.layer_specs() if s.name == "nvfp4_grouped_gemm"]
    assert len(gemms) == 6  # for any M and any distribution over the experts


def test_compile_inside_a_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_HARNESS_CACHE", "off")
    x = torch.randn(4, 512, device="cuda").to(torch.bfloat16)
    layer, _, _ = small_layer()
    ids, weights = torch.zeros(4, 4, dtype=torch.int32, device="cuda"), torch.rand(4, 4, device="cuda")
    jit.clear_memory()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(jit.CompileDuringCaptureError, match="warm-up"), torch.cuda.graph(graph):
        layer.forward(x, weights, ids)
