"""Sizes of a weight in NVFP4, from its (N, K) alone. Bytes throughout; N rows of output, K along the dot product."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 16
"""elements along K that share one E4M3 scale (one byte)"""
SF_ROWS, SF_COLUMNS = 128, 4
"""The tensor core reads scales in atoms of 128 rows by 4 columns (512 B); a swizzled buffer is padded to whole atoms.
Source: CUTLASS, media/docs/cpp/blackwell_functionality.md."""


def round_up(value: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple


def split(total: int, ranks: int, what: str) -> int:
    """The share of one of ``ranks``; a ValueError names what does not divide, as no rank may get a smaller share."""
    if ranks < 1:
        raise ValueError(f"{what}: expected at least 1 rank, got {ranks}")
    if total % ranks:
        divisors = ", ".join(str(d) for d in range(1, min(total, 128) + 1) if total % d == 0)
        raise ValueError(f"{what} = {total} does not divide into {ranks} ranks; it does into {divisors}")
    return total // ranks


@dataclass(frozen=True, order=True)
class WeightShape:
    """An (N, K) weight, K-major."""

    n: int
    k: int

    def __post_init__(self) -> None:
        if self.n < 1 or self.k < 1 or self.k % BLOCK:
            raise ValueError(f"weight ({self.n}, {self.k}): expected N >= 1 and K a multiple of {BLOCK}")

    @property
    def id(self) -> str:
        """``n6144.k7168``"""
        return f"n{self.n}.k{self.k}"

    @property
    def packed_k(self) -> int:
        """Bytes of a row: two 4-bit codes a byte."""
        return self.k // 2

    @property
    def sf_k(self) -> int:
        """Scale bytes of a row, unpadded."""
        return self.k // BLOCK

    @property
    def packed_bytes(self) -> int:
        """All codes."""
        return self.n * self.packed_k

    @property
    def sf_bytes(self) -> int:
        """All block scales, as a checkpoint stores them."""
        return self.n * self.sf_k

    @property
    def sf_swizzled_bytes(self) -> int:
        """All block scales as the tensor core reads them: rows padded to 128, columns to 4."""
        return round_up(self.n, SF_ROWS) * round_up(self.sf_k, SF_COLUMNS)

    @property
    def nvfp4_bytes(self) -> int:
        """Codes and unpadded block scales: 0.5625 B an element. What a perfect kernel reads once."""
        return self.packed_bytes + self.sf_bytes

    @property
    def bf16_bytes(self) -> int:
        """The same weight in bf16."""
        return 2 * self.n * self.k
