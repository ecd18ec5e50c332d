"""Each wrong quantiser is wrong in the way that its docstring says, and right in every other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from kernels.nvfp4 import (  # noqa: E402
    compute_global_scale,
    quantize_activation_nvfp4,
    quantize_weight_to_nvfp4,
    unpack_e2m1,
)
from kernels.nvfp4.regimes import regimes  # noqa: E402
from suites.faults.quantizers import REPLACES, WRONG_QUANTIZERS  # noqa: E402
from suites.faults.quantizers._steps import quantize_by_steps  # noqa: E402

FUNCTIONS = {name: function for name, function, _ in WRONG_QUANTIZERS}
NUMERICALLY_RIGHT = [name for name, _, gate in WRONG_QUANTIZERS if gate != "correctness"]
OPERANDS = [(r.name, torch.from_numpy(r.x.copy()), r.global_scale) for r in regimes()]


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def equal(a, b):
    return all(
        s.shape == t.shape and torch.equal(s.view(torch.uint8), t.view(torch.uint8)) for s, t in zip(a, b, strict=True)
    )


def test_the_list_is_complete():
    assert sorted(FUNCTIONS) == sorted(REPLACES)
    assert len(FUNCTIONS) == 10
    for name, function, gate in WRONG_QUANTIZERS:
        assert function.__name__ == name
        assert f"Gate: {gate}" in " ".join((function.__doc__ or "").split())


@pytest.mark.parametrize("name", [*NUMERICALLY_RIGHT, "right steps"])
@pytest.mark.parametrize(("regime", "x", "g"), OPERANDS, ids=[o[0] for o in OPERANDS])
def test_no_numerical_gate_can_see_these(name, regime, x, g):
    function = FUNCTIONS.get(name, quantize_by_steps)
    scale = compute_global_scale(x) if g is None else torch.tensor(g)
    assert equal(function(x, scale), quantize_activation_nvfp4(x, scale))


def test_half_step_table_rounds_twice():
    x, g = normal(256, 1024), torch.tensor(0.01)
    wrong, right = FUNCTIONS["half_step_table_13"](x, g), quantize_activation_nvfp4(x, g)
    assert torch.equal(wrong[1].view(torch.uint8), right[1].view(torch.uint8))
    share = (unpack_e2m1(wrong[0]) != unpack_e2m1(right[0])).float().mean().item()
    assert 0.08 < share < 0.11
    # On the grid it is right, which is how it passed a checkpoint comparison.
    from kernels.nvfp4 import dequantize_nvfp4

    grid = dequantize_nvfp4(*right, dtype=torch.float32)
    assert equal(
        FUNCTIONS["half_step_table_13"](grid, torch.tensor(1.0)), quantize_activation_nvfp4(grid, torch.tensor(1.0))
    )


def test_clamp_leaves_codes_where_the_scale_is_zero():
    x = torch.full((1, 16), 6 * 2.0**-11)
    codes, scales = FUNCTIONS["clamp_1e8_no_zero_handling"](x, torch.tensor(1.0))
    assert not scales.view(torch.uint8).any()
    assert not quantize_activation_nvfp4(x, torch.tensor(1.0))[0].any()
    assert (codes == 0x77).all()
    small = normal(4, 64) * 1e-8
    g = compute_global_scale(small)
    assert not equal(FUNCTIONS["clamp_1e8_no_zero_handling"](small, g), quantize_activation_nvfp4(small, g))


def test_threshold_zeroes_representable_blocks():
    x = torch.full((1, 16), 0.007)
    assert not FUNCTIONS["zero_threshold_2e_9"](x, torch.tensor(1.0))[1].view(torch.uint8).any()
    assert (quantize_activation_nvfp4(x, torch.tensor(1.0))[1].view(torch.uint8) == 1).all()


def test_wrong_axis_shows_unless_the_weight_is_square_and_only_shapes_are_checked():
    w = normal(64, 128)
    assert FUNCTIONS["weight_packs_wrong_axis"](w)[0].shape == (128, 32)
    assert quantize_weight_to_nvfp4(w)[0].shape == (64, 64)
    square = normal(64, 64)
    wrong, right = FUNCTIONS["weight_packs_wrong_axis"](square), quantize_weight_to_nvfp4(square)
    assert wrong[0].shape == right[0].shape
    assert not torch.equal(wrong[0], right[0])


def test_doubled_and_random():
    x, g = normal(8, 64), torch.tensor(0.01)
    assert FUNCTIONS["n_doubled"](x, g)[0].shape == (8, 64)
    scales = FUNCTIONS["random_bytes_as_scale"](normal(64, 1024), g)[1]
    assert torch.isnan(scales.float()).any()


class Largest(TorchDispatchMode):
    """Size of the largest tensor that any operation makes, and the names of all operations."""

    def __init__(self):
        super().__init__()
        self.bytes, self.names = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.append(str(func))
        if isinstance(out, torch.Tensor):
            self.bytes = max(self.bytes, out.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if REPLACES[n] == "quantize_activation_nvfp4"])
def test_only_distances_are_larger_than_the_input(name):
    if name.startswith("table_"):
        pytest.skip("a tie test over a chunk: large for a chunk, bounded for the tensor")
    with FakeTensorMode(), Largest() as seen:
        FUNCTIONS[name](torch.empty(8192, 7168, dtype=torch.bfloat16), torch.empty(()))
    ratio = seen.bytes / (8192 * 7168 * 2)
    assert (ratio == 16.0) if name == "distance_8way" else (ratio <= 1.0), ratio  # views count as the input


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if REPLACES[n] == "quantize_activation_nvfp4"])
def test_only_tables_come_from_the_host(name):
    with Largest() as seen:
        FUNCTIONS[name](normal(4, 32), torch.full((), 0.01))
    from_host = any("lift_fresh" in op for op in seen.names)
    assert from_host == name.startswith("table_")


def test_a_lock_is_legal_until_it_is_compiled():
    x, g = normal(4, 32), torch.tensor(0.01)
    function = FUNCTIONS["lock_in_call"]
    assert equal(function(x, g), quantize_activation_nvfp4(x, g))
    with pytest.raises(Exception, match="context manager"):
        torch.compile(function, fullgraph=True, backend="eager")(x, g)
    torch.compile(quantize_activation_nvfp4, fullgraph=True, backend="eager")(x, g)
