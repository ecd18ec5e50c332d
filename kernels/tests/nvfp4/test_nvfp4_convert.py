"""Conventions of other libraries, MXFP4 without loss, and reading checkpoints."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from kernels.nvfp4 import dequantize_nvfp4, quantize_weight_to_nvfp4, unpack_e2m1
from kernels.nvfp4.checkpoint import Checkpoint
from kernels.nvfp4.convert import (
    Nvfp4Tensor,
    encode_scale_from_global_scale,
    from_compressed_tensors,
    from_flashinfer,
    from_modelopt,
    global_scale_from_encode_scale,
    quantize_by_encode_scale,
    to_compressed_tensors,
    to_flashinfer,
    to_modelopt,
)
from kernels.nvfp4.mxfp4 import cast_mxfp4_to_nvfp4, dequantize_mxfp4, largest_exponent


@pytest.fixture
def weight():
    w = torch.randn(40, 96, generator=torch.Generator().manual_seed(0))
    return Nvfp4Tensor(*quantize_weight_to_nvfp4(w), input_scale=torch.tensor(0.0123))


def raw(t):
    return t.view(torch.uint8)


def same(a: Nvfp4Tensor, b: Nvfp4Tensor, ulps: int = 0) -> None:
    assert torch.equal(a.codes, b.codes)
    assert torch.equal(raw(a.scales), raw(b.scales))
    for s, t in ((a.global_scale, b.global_scale), (a.input_scale, b.input_scale)):
        if s is not None and t is not None:
            assert abs(int(s.view(torch.int32)) - int(t.view(torch.int32))) <= ulps


def test_round_trips(weight):
    same(from_modelopt(to_modelopt(weight)), weight)
    same(from_compressed_tensors(to_compressed_tensors(weight)), weight, ulps=1)
    packed, swizzled, encode = to_flashinfer(weight)
    assert swizzled.shape == (128, 8)
    same(from_flashinfer(packed, swizzled, encode), weight, ulps=1)


def test_the_reciprocal_goes_by_its_own_name(weight):
    theirs = to_compressed_tensors(weight)
    assert theirs["weight_global_scale"].shape == (1,)
    assert theirs["weight_global_scale"].item() == pytest.approx(1 / weight.global_scale.item())
    assert global_scale_from_encode_scale(encode_scale_from_global_scale(torch.tensor(0.25))).item() == 0.25
    with pytest.raises(TypeError, match="global_scale"):
        quantize_by_encode_scale(torch.zeros(1, 16), global_scale=torch.tensor(1.0))


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), 1e-40])
def test_dead_scales_are_refused(value):
    for call in (global_scale_from_encode_scale, encode_scale_from_global_scale):
        with pytest.raises(ValueError, match="expected a positive number with a finite reciprocal"):
            call(torch.tensor(value))
    with pytest.raises(TypeError, match="one element"):
        global_scale_from_encode_scale(torch.ones(2))


def test_broken_tensors_are_refused(weight):
    good = to_modelopt(weight)
    with pytest.raises(TypeError, match="weight: expected packed uint8"):
        from_modelopt({**good, "weight": good["weight"].to(torch.int32)})
    with pytest.raises(ValueError, match=r"expected one scale for 16 codes, \(40, 6\), got \(40, 5\)"):
        from_modelopt({**good, "weight_scale": good["weight_scale"][:, :5]})
    with pytest.raises(TypeError, match="float8_e4m3fn"):
        from_modelopt({**good, "weight_scale": good["weight_scale"].float()})
    with pytest.raises(ValueError, match="weight_scale_2: expected one element"):
        from_modelopt({**good, "weight_scale_2": torch.ones(3)})
    same(from_modelopt({**good, "weight_scale": raw(good["weight_scale"])}), weight)


# --- MXFP4 -------------------------------------------------------------------------------------------------------

REAL_BYTES = bytes.fromhex("a0a8ec4aad af42aa".replace(" ", ""))
"""DeepSeek-V4.1-Flash, layers.0.ffn.experts.0.w1, row 0, first 8 bytes; their E8M0 scale byte is 0x78 = 2^-7."""
REAL_VALUES = [0, -1, 0, -1, -2, -4, -1, 2, -3, -1, -6, -1, 1, 2, -1, -1]
"""The same 16 weights in units of 2^-7, from the published facts."""


def real_block():
    """The 8 real bytes, twice: a whole block of 32."""
    codes = torch.frombuffer(bytearray(REAL_BYTES * 2), dtype=torch.uint8).view(1, 16)
    return codes, torch.full((1, 1), 0x78, dtype=torch.uint8)


def test_real_mxfp4_bytes():
    codes, e8m0 = real_block()
    assert unpack_e2m1(codes)[0, :2].tolist() == [0x0, 0xA]  # byte 0xA0: low nibble first
    exact = dequantize_mxfp4(codes, e8m0)
    assert exact[0, :16].tolist() == [v * 2.0**-7 for v in REAL_VALUES]
    cast = cast_mxfp4_to_nvfp4(codes, e8m0)
    assert cast.codes is codes
    assert cast.global_scale.item() == 2.0 ** (-7 - 8)
    assert cast.scales.float().tolist() == [[256.0, 256.0]]
    back = dequantize_nvfp4(cast.codes, cast.scales, cast.global_scale, torch.float32)
    assert torch.equal(back.double(), exact)


def test_mxfp4_exact_over_the_whole_range_and_refused_beyond():
    """kmax - k from 0 to 17 is exact, subnormal E4M3 scales included; 18 is refused; zero blocks do not count."""
    codes = real_block()[0].expand(19, 16).contiguous()
    e8m0 = (127 + 3 - torch.arange(19)).to(torch.uint8).view(19, 1)
    cast = cast_mxfp4_to_nvfp4(codes[:18], e8m0[:18])
    assert torch.equal(
        dequantize_nvfp4(cast.codes, cast.scales, cast.global_scale, torch.float32).double(),
        dequantize_mxfp4(codes[:18], e8m0[:18]),
    )
    with pytest.raises(ValueError, match=r"not exact here: 1 of 19 blocks.*kmax 3, smallest block exponent -15"):
        cast_mxfp4_to_nvfp4(codes, e8m0)
    codes[18] = 0x80  # -0 and +0 only
    cast = cast_mxfp4_to_nvfp4(codes, e8m0)
    assert raw(cast.scales)[18].tolist() == [0, 0]


@pytest.mark.parametrize("low", [0, 1, 5, 100, 237])
def test_mxfp4_any_exponent(low):
    codes = torch.randint(0, 256, (18, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(low))
    e8m0 = (low + torch.arange(18)).clamp(max=254).to(torch.uint8).view(18, 1)
    try:
        cast = cast_mxfp4_to_nvfp4(codes, e8m0)
    except ValueError:
        assert low < 10  # only where the global scale would have to be subnormal
        return
    value = dequantize_nvfp4(cast.codes, cast.scales, None, torch.float32).double() * cast.global_scale.double()
    assert torch.equal(value, dequantize_mxfp4(codes, e8m0))


def test_mxfp4_shared_exponent_and_errors():
    codes, e8m0 = real_block()
    assert largest_exponent(codes, e8m0) == -7
    assert largest_exponent(torch.zeros_like(codes), e8m0) is None
    assert cast_mxfp4_to_nvfp4(torch.zeros_like(codes), e8m0).scales.float().tolist() == [[0.0, 0.0]]
    shared = cast_mxfp4_to_nvfp4(codes, e8m0, kmax=-3)
    assert shared.global_scale.item() == 2.0**-11
    assert shared.scales.float().tolist() == [[16.0, 16.0]]
    with pytest.raises(ValueError, match="at least the tensor's own -7"):
        cast_mxfp4_to_nvfp4(codes, e8m0, kmax=-8)
    with pytest.raises(ValueError, match="1 are NaN"):
        cast_mxfp4_to_nvfp4(codes, torch.full_like(e8m0, 255))
    with pytest.raises(ValueError, match="one E8M0 scale for 32 codes"):
        cast_mxfp4_to_nvfp4(codes, e8m0.expand(1, 2))
    with pytest.raises(TypeError, match="uint8"):
        cast_mxfp4_to_nvfp4(codes, e8m0.float())


# --- checkpoints -------------------------------------------------------------------------------------------------


def test_modelopt_and_compressed_tensors_files(tmp_path, weight):
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file(
        {f"layers.0.ffn.experts.3.w1.{k}": v for k, v in to_modelopt(weight).items()} | {"norm.weight": torch.ones(4)},
        a,
    )
    save_file({f"model.layers.1.mlp.up_proj.{k}": v for k, v in to_compressed_tensors(weight).items()}, b)
    checkpoint = Checkpoint([a, b])
    assert checkpoint.nvfp4_modules() == {
        "layers.0.ffn.experts.3.w1": "modelopt",
        "model.layers.1.mlp.up_proj": "compressed-tensors",
    }
    same(checkpoint.nvfp4("layers.0.ffn.experts.3.w1"), weight)
    same(checkpoint.nvfp4("model.layers.1.mlp.up_proj"), weight, ulps=1)
    assert torch.equal(checkpoint.tensor("norm.weight"), torch.ones(4))
    assert checkpoint.mxfp4_modules() == []
    with pytest.raises(KeyError, match=r"weight_scale_2"):
        checkpoint.tensor("layers.0.ffn.experts.3.w1.scale")
    with pytest.raises(KeyError, match="no NVFP4 weight"):
        checkpoint.nvfp4("norm")
    with pytest.raises(ValueError, match="and again in"):
        Checkpoint([a, a])


def _write(path, tensors):
    """A safetensors file with type names that torch does not know. tensors: name -> (type, shape, bytes)."""
    header, data = {}, b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(("kind", "columns"), [("I8", 16), ("U8", 16), ("F4", 32)])
def test_deepseek_mxfp4_expert(tmp_path, kind, columns):
    path = tmp_path / "model.safetensors"
    w = "layers.0.ffn.experts.0.w1"
    _write(
        path,
        {f"{w}.weight": (kind, [1, columns], REAL_BYTES * 2), f"{w}.scale": ("F8_E8M0", [1, 1], b"\x78")},
    )
    checkpoint = Checkpoint(path)
    assert checkpoint.mxfp4_modules() == [w]
    assert checkpoint.tensor(f"{w}.weight").dtype == torch.uint8
    cast = checkpoint.mxfp4_as_nvfp4(w)
    back = dequantize_nvfp4(cast.codes, cast.scales, cast.global_scale, torch.float32)
    assert back[0, :16].tolist() == [v * 2.0**-7 for v in REAL_VALUES]


def test_damaged_files(tmp_path, weight):
    path = tmp_path / "x.safetensors"
    for content in (b"", b"1234", (1 << 40).to_bytes(8, "little"), (4).to_bytes(8, "little") + b"nope"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a safetensors file"):
            Checkpoint(path)
    save_file({f"m.{k}": v for k, v in to_modelopt(weight).items()}, path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="outside the file"):
        Checkpoint(path)
    partial = to_modelopt(weight)
    del partial["weight_scale"]
    save_file({f"m.{k}": v for k, v in partial.items()}, path)
    with pytest.raises(ValueError, match="incomplete modelopt NVFP4 weight, weight_scale missing"):
        Checkpoint(path).nvfp4("m")
    _write(path, {"t": ("C64", [1], bytes(8))})
    with pytest.raises(ValueError, match="no reader for the type C64"):
        Checkpoint(path).tensor("t")


def test_real_checkpoint(real_weights):
    from kernels.nvfp4.golden import real_weights_path

    checkpoint = Checkpoint(real_weights_path())
    for name, tensor in list(real_weights.items())[:5]:
        assert torch.equal(checkpoint.tensor(name), tensor)
    assert checkpoint.nvfp4_modules() == {}
