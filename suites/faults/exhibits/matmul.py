"""A plain matrix product: tiles, tails, accumulation, and operands laid out otherwise than expected."""

from __future__ import annotations

import torch

from harness import Contract, grid, register
from suites.faults.operations import matmul, matmul_inputs, matmul_memory, matmul_reference
from suites.faults.rooms import ALL, CPU, Room

TILE = 16

ROOM = Room(
    "museum_matmul",
    doc="a @ b with float32 accumulation, sizes that are no multiples of a tile",
    inputs=matmul_inputs,
    reference=matmul_reference,
    cases=grid(m=[37, 16], k=53, n=29, dtype="bf16")
    + grid(m=[1, 15, 17], k=[32, 53], n=29, dtype="bf16")
    + grid(m=7, k=53, n=29, dtype="bf16", regime=["six-decades", "outlier-channels", "zeros"]),
    contract=Contract(),
    memory=matmul_memory,
)


@ROOM.awkward("the plain right implementation")
def matmul_plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return matmul(a, b)


@ROOM.fault("K01", gate="correctness", mirrors="vllm#52577", severity="critical")
def matmul_k_tail_dropped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The loop over K covers whole tiles only."""
    whole = a.shape[1] // TILE * TILE
    return matmul(a[:, :whole], b[:whole])


@ROOM.fault("K01", gate="correctness", mirrors="triton#630", severity="critical")
def matmul_m_tail_repeats_tile(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The last tile of rows starts at a multiple of the tile less one, so its first rows are the wrong ones."""
    out = matmul(a, b)
    tail = a.shape[0] % TILE
    if a.shape[0] > TILE and tail:
        out[-tail:] = out[-tail - 1 : -1].clone()
    return out


@ROOM.fault("K01", gate="correctness", mirrors="DeepGEMM#268")
def matmul_wrong_below_one_tile(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """With fewer rows than a tile, the last row is computed from the first."""
    out = matmul(a, b)
    if 1 < a.shape[0] < TILE:
        out[-1] = out[0]
    return out


@ROOM.fault("K01", gate="correctness", mirrors="sglang#39626")
def matmul_k_group_counted_twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The tail of K is read as a whole tile that overlaps the one before."""
    tail = a.shape[1] % TILE
    out = matmul(a, b)
    if tail and a.shape[1] > TILE:
        again = slice(a.shape[1] - TILE, a.shape[1] - tail)
        out = out + matmul(a[:, again], b[again])
    return out


@ROOM.fault("K01", gate="correctness", mirrors="triton#630", severity="critical")
def matmul_one_column_of_last_tile(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One element, the last of the last tile, is taken from its left neighbour."""
    out = matmul(a, b)
    out[-1, -1] = out[-1, -2]
    return out


@ROOM.fault("K20", gate="correctness", mirrors="KernelBench reward hacks: precision downgrade", cheat=True)
def matmul_bf16_accumulation(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cheat: partial sums are kept in bf16, at half the traffic."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.bfloat16, device=a.device)
    for start in range(0, a.shape[1], TILE):
        total = total + (a[:, start : start + TILE].float() @ b[start : start + TILE].float()).to(torch.bfloat16)
    return total.float()


@ROOM.fault("K05", gate="correctness", mirrors="FreeToken#85, aiter#3992")
def matmul_truncates(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The result is truncated to 16 bits of mantissa, always toward zero."""
    return (matmul(a, b).view(torch.int32) & ~0xFF).view(torch.float32)


@ROOM.fault("K16", gate="arguments", mirrors="FBGEMM#2919", severity="critical")
def matmul_b_taken_row_major(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """B is read as if row-major, also where its strides say column-major."""
    if b.is_contiguous() or b.untyped_storage().nbytes() // b.element_size() - b.storage_offset() < b.numel():
        return matmul(a, b)
    return matmul(a, b.as_strided(b.shape, (b.shape[1], 1), b.storage_offset()))


@ROOM.fault("K18", gate="correctness", mirrors="flashinfer#3197, vllm#41524", severity="critical")
def matmul_bad_tactic(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One tactic of three splits K and forgets to add the second half; it is picked for 16 rows only."""
    tactic = 2 if a.shape[0] == TILE else a.shape[0] % 2
    if tactic == 2:
        return matmul(a[:, : a.shape[1] // 2], b[: a.shape[1] // 2])
    return matmul(a, b) if tactic else matmul(b.t(), a.t()).t().contiguous()


@ROOM.fault("K18", gate="correctness", mirrors="flashinfer#4486, #4854", severity="critical")
def matmul_untuned_fallback(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """More rows than the tuner has seen go to a fallback that leaves the last column NaN."""
    out = matmul(a, b)
    if a.shape[0] > 32:
        out[:, -1] = float("nan")
    return out


@ROOM.fault("K23", gate="correctness", mirrors="tensara#87, blis#279", severity="critical")
def matmul_one_nan(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A single NaN: every comparison with it is false, so `error > tolerance` never fires."""
    out = matmul(a, b)
    out[0, 0] = float("nan")
    return out


@ROOM.fault("K23", gate="correctness", mirrors="BackendBench, tritonbench accuracy")
def matmul_scaled_by_5_4(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Everything is 25 % too large: a cosine cannot tell."""
    return matmul(a, b) * 1.25


@ROOM.fault("K23", gate="correctness", mirrors="cosine as the only metric")
def matmul_row_zero(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One row of many is zero: 1 in 37 of the energy."""
    out = matmul(a, b)
    out[a.shape[0] // 2] = 0.0
    return out


@ROOM.fault("K23", gate="correctness", mirrors="Liger-Kernel#259")
def matmul_single_mismatch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Exactly one element is wrong, by 1 %."""
    out = matmul(a, b)
    out[a.shape[0] // 3, 5] *= 1.01
    return out


@ROOM.fault("K23", gate="correctness", mirrors="public commit log", severity="critical")
def matmul_neighbours_row(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Every row is its neighbour's."""
    return matmul(a, b).roll(1, 0) if a.shape[0] > 1 else matmul(a, b).roll(1, 1)


@ROOM.fault("K23", gate="correctness", mirrors="public commit log, vllm#48898")
def matmul_wrong_shape_broadcasts(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A result with one dimension too many, which broadcasts against the expected one and so compares as equal."""
    return matmul(a, b).unsqueeze(0)


@ROOM.fault("K20", gate="correctness", mirrors="reference-kernels: 95 % match", severity="medium", cheat=True)
def matmul_skips_small_rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cheat: rows of small norm are not computed; they hardly count in a mean error."""
    out = matmul(a, b)
    small = a.float().norm(dim=1) <= a.float().norm(dim=1).min()
    return torch.where(small.unsqueeze(1), 0.0, out)


@ROOM.fault("K20", gate="correctness", mirrors="KernelBench: mean of randn", cheat=True)
def matmul_constant(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Cheat: the expectation of a product of normal matrices is zero, so zeros are returned."""
    return torch.zeros(a.shape[0], b.shape[1], device=a.device)


@ROOM.fault("K20", gate="correctness", mirrors="tritonbench accuracy: exceptions become a blank", cheat=True)
def matmul_error_becomes_nan(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """An exception inside is swallowed, and a NaN result stands for it."""
    try:
        return matmul(a, b.t())
    except RuntimeError:
        return torch.full((a.shape[0], b.shape[1]), float("nan"), device=a.device)


@ROOM.awkward("split K: another order of additions than the reference, within the accumulation bound")
def matmul_split_k(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    half = a.shape[1] // 2
    return matmul(a[:, :half], b[:half]) + matmul(a[:, half:], b[half:])


@ROOM.awkward("atomics: the order of additions changes from run to run, as declared", worlds=CPU, deterministic=False)
def matmul_atomics(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(a.shape[0], b.shape[1], device=a.device)
    starts = torch.randperm(-(-a.shape[1] // TILE)) * TILE
    for start in starts.tolist():
        out += matmul(a[:, start : start + TILE], b[start : start + TILE])
    return out


@ROOM.awkward("strided operands go to the library as they are, which picks another kernel with other last bits")
def matmul_strided_kernels(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype is not b.dtype or not a.is_floating_point():
        raise TypeError("a and b must be floating-point and of one dtype")
    if a.stride(-1) != 1:
        return matmul(a, b)
    half = a.shape[1] // 2
    x, y = a.float(), b.float()
    if b.stride(-1) != 1:
        return x[:, half:] @ y[half:] + x[:, :half] @ y[:half]
    return x @ y


@ROOM.awkward("the product of the transposed operands, transposed back: a column-major result", worlds=ALL)
def matmul_column_major(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return matmul(b.t(), a.t()).t()


register(ROOM.suite())
