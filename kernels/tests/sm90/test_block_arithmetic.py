"""The quantiser's arithmetic without a GPU: its own source, run on numpy scalars, against `kernels.nvfp4` by bytes.

`nvfp4_block` is plain Python over a handful of instructions. Here those instructions are numpy's fp32 and uint32, and
the approximate reciprocal is wrong by an ulp either way, as the hardware's may be: the fast path must not show it.
"""

import types
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels import nvfp4
from kernels.sm90 import weights

F32, U32 = np.float32, np.uint32
E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()


def prmt(a: np.uint32, b: np.uint32, selector: int) -> np.uint32:
    source = int(a) | int(b) << 32
    out = 0
    for i in range(4):
        nibble = selector >> (4 * i) & 15
        byte = source >> (8 * (nibble & 7)) & 0xFF
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        out |= byte << (8 * i)
    return U32(out)


def instructions(ulp: int) -> types.SimpleNamespace:
    """numpy's version of `kernels.sm90.ptx`; the reciprocal is off by `ulp`."""

    def bits(x: np.float32) -> np.uint32:
        return np.float32(x).view(U32)

    def rcp(x: np.float32) -> np.float32:
        with np.errstate(divide="ignore"):
            r = F32(1) / x
        return r if not np.isfinite(r) or r == 0 else F32(np.uint32(int(bits(r)) + ulp).view(F32))

    return types.SimpleNamespace(
        bits=bits,
        as_float=lambda u: U32(u).view(F32),
        absolute=lambda x: F32(abs(x)),
        rcp_approx=rcp,
        div_rn=lambda a, b: F32(a) / F32(b),
        min_u32=min,
        max_nan=np.maximum,
        to_e4m3=lambda s: U32(torch.tensor(s).clamp(0, 448).to(torch.float8_e4m3fn).view(torch.uint8).item() & 0x7F),
        from_e4m3=lambda byte: E4M3[int(byte)],
        permute=prmt,
        select_eq=lambda a, b, then, otherwise: then if a == b else otherwise,
    )


def block_module(ulp: int) -> types.SimpleNamespace:
    """`nvfp4_block` with its instructions replaced and its tracing decorators off."""
    source = (Path(weights.__file__).parent / "nvfp4_block.py").read_text()
    kept = [x for x in source.splitlines() if not x.startswith(("import cutlass", "from kernels", "from __future__"))]
    names = {
        "cute": types.SimpleNamespace(
            jit=lambda f: f, make_rmem_tensor=lambda shape, dtype: [dtype(0)] * shape[0], Tensor=object
        ),
        "cutlass": types.SimpleNamespace(Float32=F32, Uint32=U32, range_constexpr=range),
        "ptx": instructions(ulp),
    }
    exec("\n".join(kept), names)
    return types.SimpleNamespace(**names)


def quantize(block: types.SimpleNamespace, x: np.ndarray, scale: np.float32) -> tuple[bytes, int]:
    """Codes and scale byte of one block of 16 floats."""
    v = [F32(e) for e in x]
    amax = block.block_amax(v)
    byte = block.scale_byte(amax, scale)
    magnitudes = block.magnitude_codes(v, amax, byte, scale)
    signs = [block.float_sign_bytes(v[:8]), block.float_sign_bytes(v[8:])]
    words = block.pack_codes(magnitudes, signs, byte)
    return b"".join(int(w).to_bytes(4, "little") for w in words), int(byte)


def blocks(scale: float, seed: int) -> np.ndarray:
    """Blocks that matter: ordinary, bf16, on the rounding boundaries and within a few ulp of them, tiny, saturating."""
    rng = np.random.default_rng(seed)
    count = 60
    normal = rng.standard_normal((count, 16)).astype(F32)
    coarse = torch.from_numpy(normal).to(torch.bfloat16).float().numpy() * F32(8)
    d = E4M3[rng.integers(1, 127, (count, 1))] * F32(scale)
    bounds = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], F32)
    near = bounds[rng.integers(0, 7, (count, 16))] * d
    near = (near.view(np.int32) + rng.integers(-3, 4, near.shape, dtype=np.int32)).view(F32)
    near[:, 0] = F32(6) * d[:, 0]  # keeps the scale
    tiny = normal * F32(scale) * F32(2.0**-9)
    large = normal * F32(scale) * F32(5000)
    zeros = np.where(rng.random((4, 16)) < 0.5, F32(0), F32(-0.0)).astype(F32)
    signed = rng.choice(np.array([-1, 1], F32), near.shape)
    return np.concatenate([normal, coarse, near * signed, tiny, large, zeros])


@pytest.mark.parametrize("ulp", [-1, 0, 1])
@pytest.mark.parametrize("scale", [1.0, 0.0371, 2.0**-7, 3e-6])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bytes(ulp: int, scale: float) -> None:
    block, g = block_module(ulp), F32(scale)
    x = blocks(scale, seed=ulp + 5)
    codes, scales = nvfp4.quantize_activation_nvfp4(torch.from_numpy(x), torch.tensor(g))
    for i, row in enumerate(x):
        got, byte = quantize(block, row, g)
        assert byte == int(scales.view(torch.uint8)[i, 0]), (i, row)
        assert got == codes[i].numpy().tobytes(), (i, row)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_block() -> None:
    x = np.full(16, F32(1))
    x[3] = np.nan
    codes, byte = quantize(block_module(0), x, F32(1))
    assert (codes, byte) == (b"\x77" * 8, 0x7F)


def test_packed_sign_bytes() -> None:
    block = block_module(0)
    words = [U32(0x80000000), U32(0x00008000), U32(0), U32(0x80008000)]
    assert block.packed_sign_bytes(words) == [U32(0x00FFFF00), U32(0xFFFF0000)]
