"""What a CUDA graph, a compiler and a memory budget need, checked on the CPU: dispatch modes see every operation."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.nvfp4 import (
    compute_global_scale,
    dequantize_nvfp4,
    quantize_activation_nvfp4,
    quantize_peak_bytes,
    quantize_to_nvfp4,
    quantize_weight_to_nvfp4,
    swizzle_scales_grouped,
    unswizzle_scales_grouped,
)
from kernels.nvfp4.convert import quantize_by_encode_scale

PRO = (8192, 7168)


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that are alive, after every operation; `peak` is the largest."""

    def __init__(self, *inputs: torch.Tensor) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak = 0
        for t in inputs:
            self._see(t)

    def _see(self, t: torch.Tensor) -> None:
        storage = t.untyped_storage()
        key = storage._cdata
        if key not in self.live:
            self.live[key] = storage.nbytes()
            weakref.finalize(storage, self.live.pop, key, None)
        self.peak = max(self.peak, sum(self.live.values()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self._see(t)
        return out


def peak_of(call, *shapes_and_dtypes):
    """Predicted peak of call(*inputs) with fake CPU tensors: full size, no memory."""
    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes_and_dtypes]
        with LiveBytes(*inputs) as tracker:
            out = call(*inputs)
        del out
    return tracker.peak


CALLS = {
    "own": quantize_to_nvfp4,
    "given": lambda x: quantize_activation_nvfp4(x, torch.ones(())),
    "modelopt": lambda x: quantize_to_nvfp4(x, compat="modelopt"),
}


@pytest.mark.parametrize("call", CALLS)
def test_peak_of_a_full_activation(call):
    peak = peak_of(CALLS[call], (PRO, torch.bfloat16))
    inputs = PRO[0] * PRO[1] * 2
    assert peak <= quantize_peak_bytes(PRO)
    assert peak <= 2.3 * inputs
    assert peak >= inputs * 1.28  # input and outputs alone: a tracker that sees nothing must not pass


@pytest.mark.parametrize("k_dim", [-1, -2])
@pytest.mark.parametrize("stack", [(48, 7168, 6144), (7168, 6144)])
def test_peak_of_an_expert_stack(stack, k_dim):
    peak = peak_of(lambda w: quantize_weight_to_nvfp4(w, k_dim=k_dim, check_finite=False), (stack, torch.bfloat16))
    n = torch.Size(stack).numel()
    assert peak <= quantize_peak_bytes(stack)
    assert peak <= 2.3 * 2 * n


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "shape", [(1, 7168), (100, 7168), (585, 7168), (586, 7168), (4096, 4096), (3, 5, 4608), (1 << 19, 16)]
)
def test_formula_bounds_every_size(shape, dtype):
    for layout in ("linear", "swizzled"):
        peak = peak_of(lambda x, layout=layout: quantize_to_nvfp4(x, scale_layout=layout), (shape, dtype))
        bound = quantize_peak_bytes(shape, dtype, scale_layout=layout)
        assert peak <= bound
        assert bound <= 1.4 * peak + (1 << 17)  # a bound so loose that it hides a second copy would be worthless


def test_real_allocations_match_the_fake_ones():
    x = torch.randn(1000, 7168, dtype=torch.bfloat16)
    with LiveBytes(x) as real:
        out = quantize_to_nvfp4(x)
    del out
    assert real.peak == peak_of(quantize_to_nvfp4, ((1000, 7168), torch.bfloat16))


def test_dequantise_needs_one_chunk_beside_its_output():
    def call(codes, scales):
        return dequantize_nvfp4(codes, scales.view(torch.float8_e4m3fn), torch.ones(()), torch.bfloat16)

    peak = peak_of(call, ((8192, 3584), torch.uint8), ((8192, 448), torch.uint8))
    assert peak <= 8192 * 7168 * (0.5625 + 2) + 11 * (1 << 22)


class NoHost(TorchDispatchMode):
    """Refuses what breaks or poisons a CUDA-graph capture: reading a value, data-dependent shapes, tensors lifted
    from Python data, copies between devices, and (with fake meta-like device inputs) any tensor on another device."""

    FORBIDDEN = (
        "lift_fresh",
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "item",
        "unique",
        "index.Tensor",
        "index_put",
        "is_nonzero",
        "_to_copy.device",
        "scalar_tensor",
        "equal",
    )

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.count = device, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        assert not any(word in name for word in self.FORBIDDEN), f"{name} in the hot path"
        out = func(*args, **(kwargs or {}))
        self.count += 1
        for t in tree_leaves((args, kwargs, out)):
            if isinstance(t, torch.Tensor):
                assert t.device.type == self.device, f"{name}: a tensor on {t.device} in a call on {self.device}"
        return out


HOT = {
    "quantize": lambda x, g, o: quantize_to_nvfp4(x),
    "quantize swizzled": lambda x, g, o: quantize_to_nvfp4(x, scale_layout="swizzled"),
    "quantize compat": lambda x, g, o: quantize_to_nvfp4(x, compat="modelopt"),
    "activation": lambda x, g, o: quantize_activation_nvfp4(x, g),
    "weight unchecked": lambda x, g, o: quantize_weight_to_nvfp4(x, check_finite=False),
    "encode scale": lambda x, g, o: quantize_by_encode_scale(x, g),
    "dequantize": lambda x, g, o: dequantize_nvfp4(*quantize_activation_nvfp4(x, g), g),
    "grouped layout": lambda x, g, o: unswizzle_scales_grouped(
        swizzle_scales_grouped(quantize_activation_nvfp4(x, g)[1], o), o, 64, 8
    ),
}


@pytest.mark.parametrize("call", HOT)
def test_no_host_work_and_no_tensor_of_another_device(call):
    """On `meta` tensors, which have no values: reading one raises, and any CPU tensor made in the call stands out."""
    x = torch.empty(64, 128, dtype=torch.bfloat16, device="meta")
    g = torch.empty((), device="meta")
    offsets = torch.empty(5, dtype=torch.int32, device="meta")
    with NoHost("meta") as mode:
        HOT[call](x, g, offsets)
    assert mode.count > 5


def test_the_check_itself_catches_a_table_made_in_the_call():
    with pytest.raises(AssertionError, match="lift_fresh"), NoHost("cpu"):
        torch.tensor([0.25, 0.75])


@pytest.mark.parametrize("shape", [(3, 32), (2, 5, 64), (0, 16), (130, 48)])
def test_opcheck(shape):
    x = torch.randn(shape)
    g = torch.tensor(0.01)
    codes = torch.empty((*shape[:-1], shape[-1] // 2), dtype=torch.uint8)
    scales = torch.empty((*shape[:-1], shape[-1] // 16), dtype=torch.uint8)
    ops = torch.ops.kh_nvfp4
    for compat in (None, "modelopt"):
        torch.library.opcheck(ops.quantize, (x, compat))
        torch.library.opcheck(ops.quantize_with, (x, g, compat))
        torch.library.opcheck(ops.quantize_out, (x, g, compat, codes, scales))
    q, s = ops.quantize_with(x, g, None)
    torch.library.opcheck(ops.dequantize_out, (q, s, g, torch.empty(shape)))
    torch.library.opcheck(ops.swizzle, (s,))
    torch.library.opcheck(ops.unswizzle, (ops.swizzle(s), s.shape[-2], s.shape[-1]))


def test_compiles_as_one_graph_with_equal_bits():
    from torch._dynamo.testing import CompileCounter

    def call(x, g):
        own = quantize_to_nvfp4(x, scale_layout="swizzled")
        codes, scales = quantize_activation_nvfp4(x * 2.0, g)
        out = (torch.empty_like(codes), torch.empty_like(scales))
        quantize_activation_nvfp4(x, g, out=out)
        back = dequantize_nvfp4(own[0], own[1], own[2], scale_layout="swizzled")
        return *own, codes, scales, *out, dequantize_nvfp4(codes, scales, g), back

    counter = CompileCounter()
    compiled = torch.compile(call, fullgraph=True, backend=counter, dynamic=True)
    for rows in (4, 130, 7):
        x = torch.randn(rows, 64, dtype=torch.bfloat16)
        g = compute_global_scale(x)
        for a, b in zip(compiled(x, g), call(x, g), strict=True):
            assert torch.equal(a.view(torch.uint8) if a.dim() else a, b.view(torch.uint8) if b.dim() else b)
    assert counter.frame_count == 1


def test_inductor_compiles_it():
    x = torch.randn(33, 64, dtype=torch.bfloat16)
    compiled = torch.compile(lambda x: quantize_to_nvfp4(x * 1.5), fullgraph=True)
    for a, b in zip(compiled(x), quantize_to_nvfp4(x * 1.5), strict=True):
        assert torch.equal(a.view(torch.uint8) if a.dim() else a, b.view(torch.uint8) if b.dim() else b)
