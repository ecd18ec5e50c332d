"""The weight shuffle against the format: every byte is decoded again as the GEMM's registers would, on the CPU."""

import pytest
import torch

from kernels.sm90.weights import SLAB_BYTES, encode_scales, interleave_rows, shuffle_weights

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def decode_code(nibble: torch.Tensor) -> torch.Tensor:
    value = E2M1[(nibble & 7).long()]
    return torch.where(nibble >= 8, -value, value)


def dense(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(N, K) float64 from packed codes and E4M3 scales, by the format's definition."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    return decode_code(codes) * scales.to(torch.float64).repeat_interleave(16, dim=-1)


def bf16(bits: torch.Tensor) -> torch.Tensor:
    return bits.to(torch.int32).to(torch.int16).view(torch.bfloat16).to(torch.float64)


def device_decode(slab: torch.Tensor, kind: str) -> torch.Tensor:
    """(64, 128) float64: what the kernel's bit operations make of one slab, thread by thread."""
    out = torch.zeros(64, 128, dtype=torch.float64)
    words = slab[:4096].view(torch.int32).view(2, 128, 4).to(torch.int64) & 0xFFFFFFFF
    scale_words = slab[4096:].view(torch.int32).view(32, 4).to(torch.int64) & 0xFFFFFFFF
    for h in range(2):
        for i in range(4):
            step = 4 * h + i
            for thread in range(128):
                q = words[h, thread, i]
                s = scale_words[thread // 4, step // 2]
                if step % 2:
                    s = ((s >> 8) | (s << 24)) & 0xFFFFFFFF
                s = (s & 0x0FF00FF0) | 0x70007000
                pairs = (
                    q & 0x81C081C0,
                    ((q << 3) & 0x01C001C0) | ((q << 1) & 0x80008000),
                    (q << 6) & 0x81C081C0,
                    ((q >> 5) & 0x01C001C0) | ((q << 5) & 0x80008000),
                )
                for p, word in enumerate(pairs):
                    scale = bf16((s >> (16 * (p % 2))) & 0xFFFF)
                    row = 16 * (thread // 32) + 8 * (p % 2) + thread % 32 // 4
                    k = 16 * step + 8 * (p // 2) + 2 * (thread % 4)
                    for half in range(2):
                        product = bf16((word >> (16 * half)) & 0xFFFF) * scale
                        assert product == product.to(torch.bfloat16).to(torch.float64)  # exact in bf16
                        out[row, k + half] = product * 2.0**7
    if kind == "plain":  # undo the permutation that makes the epilogue's stores contiguous
        r = torch.arange(16)
        order = 4 * (r % 8 // 2) + r % 2 + 2 * (r // 8)
        undone = torch.empty_like(out)
        for w in range(4):
            undone[16 * w + order] = out[16 * w : 16 * w + 16]
        out = undone
    return out


def random_operand(experts: int, rows: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (experts, rows, k // 2), dtype=torch.uint8, generator=g)
    scales = torch.randint(0, 127, (experts, rows, k // 16), dtype=torch.uint8, generator=g)
    return packed, scales.view(torch.float8_e4m3fn)


@pytest.mark.parametrize("kind", ["plain", "swiglu"])
@pytest.mark.parametrize(("rows", "k"), [(64, 128), (80, 144), (128, 288)])
def test_shuffle_decodes_to_the_same_matrix(rows: int, k: int, kind: str) -> None:
    packed, scales = random_operand(2, rows, k, seed=rows + k)
    shuffled = shuffle_weights(packed, scales, kind=kind)
    data = shuffled.data.view(2, shuffled.slabs, shuffled.k_blocks, SLAB_BYTES)
    expert, slab, block = 1, shuffled.slabs - 1, shuffled.k_blocks - 1
    want = torch.zeros(shuffled.slabs * 64, shuffled.k_blocks * 128, dtype=torch.float64)
    want[:rows, :k] = dense(packed[expert], scales[expert])
    got = device_decode(data[expert, slab, block].contiguous(), kind)
    assert torch.equal(got, want[64 * slab : 64 * slab + 64, 128 * block : 128 * block + 128])


def test_scale_code_is_exact_for_every_finite_scale() -> None:
    byte = torch.arange(127, dtype=torch.uint8)
    code = encode_scales(byte)
    got = bf16((code << 4) | 0x7000) * 2.0**-119
    want = byte.view(torch.float8_e4m3fn).to(torch.float64)
    assert torch.equal(got[1:], want[1:])
    assert code[0] == 0  # zero scale: has no code, its elements are zeroed


def test_zero_scale_zeroes_its_block() -> None:
    packed, scales = random_operand(1, 64, 128, seed=5)
    scales.view(torch.uint8)[0, 3, 2] = 0
    data = shuffle_weights(packed, scales, kind="swiglu").data
    got = device_decode(data[:SLAB_BYTES], "swiglu")
    assert bool((got[3, 32:48] == 0).all())
    assert torch.equal(got, dense(packed[0], scales[0]))


def test_nan_scale_is_refused() -> None:
    packed, scales = random_operand(1, 64, 128, seed=6)
    scales.view(torch.uint8)[0, 0, 0] = 0x7F
    with pytest.raises(ValueError, match="NaN"):
        shuffle_weights(packed, scales)


def test_interleave_alternates_groups_of_eight() -> None:
    rows = torch.arange(64).view(1, 64, 1)
    got = interleave_rows(rows).flatten().tolist()
    assert got[:16] == [*range(8), *range(32, 40)]
    assert got[16:24] == list(range(8, 16))
