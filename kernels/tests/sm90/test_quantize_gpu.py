"""The fused quantiser on a Hopper GPU: bytes equal to the torch implementation, in every regime."""

import pytest
import torch

from kernels import nvfp4
from kernels.sm90 import quantize
from kernels.tests.sm90 import support

pytestmark = support.gpu
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def regimes(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    g = torch.Generator("cuda").manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=g)

    grid = torch.tensor([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7], device="cuda")
    made = {
        "normal": normal(257, 1024),
        "one_row": normal(1, 7168),
        "ties": grid[torch.randint(0, 16, (64, 512), device="cuda", generator=g)] * 2.0**-3,
        "outliers": normal(64, 512) * torch.where(torch.rand(64, 512, device="cuda", generator=g) > 0.999, 1e3, 1.0),
        "tiny": normal(64, 512) * 1e-7,
        "spread": normal(64, 512) * torch.exp(12 * normal(64, 32)).repeat_interleave(16, 1).clamp(1e-6, 1e4),
        "zeros": torch.zeros(32, 256, device="cuda"),
        "negative_zero": -torch.zeros(32, 256, device="cuda"),
        "integers": torch.randint(-8, 9, (64, 512), device="cuda", generator=g).float(),
    }
    nan = normal(64, 512)
    nan[3, 5] = float("nan")
    nan[9] = float("-inf")
    nan[10, 100] = float("inf")
    made["nan_inf"] = nan
    return {name: x.to(dtype) for name, x in made.items()}


SCALES = ("own", "power_of_two", "small", "large", "zero", "subnormal", "nan", "inf")


def global_scale(x: torch.Tensor, name: str) -> torch.Tensor:
    finite = x.float().nan_to_num(0, 0, 0)
    fixed = {"power_of_two": 2.0**-6, "small": 1e-9, "large": 1e3, "zero": 0.0, "subnormal": 1e-41,
             "nan": float("nan"), "inf": float("inf")}  # fmt: skip
    value = fixed.get(name)
    return nvfp4.compute_global_scale(finite) if value is None else torch.full((), value, device="cuda")


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
def test_given_scale_bytes(dtype: torch.dtype, scale: str) -> None:
    for name, x in regimes(dtype).items():
        g = global_scale(x, scale)
        want = nvfp4.quantize_activation_nvfp4(x, g)
        got = quantize.quantize_activation_nvfp4(x, g)
        assert same(got[1], want[1]), (name, "scales")
        wrong = (got[0] != want[0]).sum().item()
        assert wrong == 0, (name, "codes", wrong, want[0].numel())


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_kernel_form(dtype: torch.dtype) -> None:
    for name, x in regimes(dtype).items():
        want, got = nvfp4.quantize_to_nvfp4(x), quantize.quantize_to_nvfp4(x)
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape, name
            assert torch.equal(a.float().nan_to_num(-1) if a.dim() == 0 else a.view(torch.uint8),
                               b.float().nan_to_num(-1) if b.dim() == 0 else b.view(torch.uint8)), name  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 16), (129, 288), (300, 1152), (128, 64)])
def test_swizzled_scales(shape: tuple[int, int]) -> None:
    x = torch.randn(shape, device="cuda").to(torch.bfloat16)
    g = nvfp4.compute_global_scale(x)
    want = nvfp4.quantize_activation_nvfp4(x, g, scale_layout="swizzled")
    got = quantize.quantize_activation_nvfp4(x, g, scale_layout="swizzled")
    assert same(got[0], want[0])
    assert got[1].shape == want[1].shape
    assert same(got[1], want[1])


def test_dense_sweep_of_quotients() -> None:
    """Many bf16 values, both signs, under many maxima: the fast path must fall back wherever it could differ."""
    every = torch.arange(0, 0x7F80, dtype=torch.int32, device="cuda").to(torch.int16).view(torch.bfloat16)
    g = torch.Generator("cuda").manual_seed(1)
    for g_scale in (1.0, 0.37, 2.0**-9, 1.7e-3):
        x = every[torch.randint(0x3000, 0x4800, (4096, 1024), device="cuda", generator=g)]
        x = torch.where(torch.rand(x.shape, device="cuda", generator=g) > 0.5, x, -x)
        scale = torch.full((), g_scale, device="cuda")
        want, got = nvfp4.quantize_activation_nvfp4(x, scale), quantize.quantize_activation_nvfp4(x, scale)
        assert same(got[1], want[1])
        assert same(got[0], want[0])


def test_near_boundaries_in_fp32() -> None:
    """fp32 values within a few ulp of every rounding boundary times the step."""
    bounds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device="cuda")
    for g_scale in (1.0, 0.1, 3.3e-3, 7.7):
        scale = torch.full((), g_scale, device="cuda")
        byte = torch.randint(1, 127, (20000, 1), device="cuda", dtype=torch.uint8)
        d = byte.view(torch.float8_e4m3fn).float() * scale
        x = bounds[torch.randint(0, 7, (20000, 16), device="cuda")] * d
        x = (x.view(torch.int32) + torch.randint(-6, 7, x.shape, device="cuda", dtype=torch.int32)).view(torch.float32)
        x[:, 0] = 6 * d[:, 0]  # keeps the scale byte
        want, got = nvfp4.quantize_activation_nvfp4(x, scale), quantize.quantize_activation_nvfp4(x, scale)
        assert same(got[1], want[1])
        assert same(got[0], want[0])


def test_per_expert_scales() -> None:
    counts = [3, 0, 17, 1, 64]
    offsets = support.offsets_of(counts)
    x = torch.randn(sum(counts), 512, device="cuda").to(torch.bfloat16)
    scales = torch.tensor([0.01, 1.0, 0.002, 0.5, 0.03], device="cuda")
    codes, blocks = quantize.quantize_experts_nvfp4(x, scales, offsets)
    at = 0
    for e, m in enumerate(counts):
        want = nvfp4.quantize_activation_nvfp4(x[at : at + m], scales[e])
        assert same(codes[at : at + m], want[0])
        assert same(blocks[at : at + m], want[1])
        at += m


def test_emulation_decodes_exactly() -> None:
    x = torch.randn(100, 1024, device="cuda").to(torch.bfloat16)
    g = nvfp4.compute_global_scale(x)
    codes, scales = nvfp4.quantize_activation_nvfp4(x, g)
    values, got_scales = quantize.emulate_nvfp4(x, g)
    assert same(got_scales, scales)
    assert torch.equal(values.double(), support.dense(codes, scales))


@pytest.mark.parametrize("order", ["halves", "interleaved"])
def test_swiglu_quantize(order: str) -> None:
    """Against fp64: the scale may move by one step and a code where y is within 1e-5 of a boundary; nothing else."""
    m, inter, limit = 130, 512, 10.0
    gate, up = (torch.randn(m, inter, device="cuda").mul_(6).to(torch.bfloat16) for _ in range(2))
    if order == "halves":
        x = torch.cat((gate, up), dim=1)
    else:
        x = torch.stack((gate.view(m, -1, 8), up.view(m, -1, 8)), dim=2).reshape(m, 2 * inter)
    y = torch.nn.functional.silu(gate.double().clamp(max=limit)) * up.double().clamp(-limit, limit)
    g = nvfp4.compute_global_scale(y.float())
    want = nvfp4.quantize_activation_nvfp4(y.float(), g)
    got = quantize.swiglu_quantize_nvfp4(x, g, limit, order=order)
    assert (got[1].view(torch.uint8).int() - want[1].view(torch.uint8).int()).abs().max() <= 1
    nibbles = [torch.stack((c & 15, c >> 4), -1).flatten() for c in (got[0], want[0])]
    assert (nibbles[0] != nibbles[1]).float().mean() < 1e-3


def test_captures_and_replays_with_another_scale() -> None:
    x, g = torch.randn(64, 512, device="cuda").to(torch.bfloat16), torch.full((), 0.01, device="cuda")
    quantize.quantize_activation_nvfp4(x, g)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = quantize.quantize_activation_nvfp4(x, g)
    x.copy_(torch.randn(64, 512, device="cuda"))
    g.fill_(0.003)
    graph.replay()
    want = nvfp4.quantize_activation_nvfp4(x, g)
    assert same(out[0], want[0])
    assert same(out[1], want[1])
