"""Compares an output with its reference: element by element, row by row, tile by tile.

Pure functions of tensors; they know of no suite and no gate. Every bound is written as ``not (error <= bound)``, so
that a NaN can never pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from harness.suite import Bounded, Tolerance

TILE = 128
"""Rows and columns of a tile: the tile of most matrix kernels, so that a wrong tile shows as one."""

_SAMPLE = 1 << 18
"""Elements looked at for error quantiles (evenly strided); maxima always see every element."""


@dataclass(frozen=True)
class Comparison:
    """Result of one comparison. ``where``, ``found`` and ``expected`` describe the worst element."""

    ok: bool
    reason: str = ""
    expected: str = ""
    found: str = ""
    where: str = ""
    mismatches: int = 0
    total: int = 0
    figures: dict[str, float] = field(default_factory=dict)


def compare(found: torch.Tensor, expected: torch.Tensor | Bounded, tolerance: Tolerance) -> Comparison:
    """Compare an output with its reference under a tolerance.

    Shapes must agree; for a bitwise tolerance dtypes too. NaN is allowed exactly where the reference has NaN, and
    infinities must be the same ones.
    """
    bound: torch.Tensor | None = None
    if isinstance(expected, Bounded):
        bound = expected.bound
        expected = expected.value
    if tuple(found.shape) != tuple(expected.shape):
        return Comparison(False, "wrong shape", str(tuple(expected.shape)), str(tuple(found.shape)))
    expected = expected.to(found.device)
    if tolerance.exact and bound is None:  # a reference that brings a bound for each element means that one
        return _compare_bytes(found, expected)
    return _compare_values(found, expected, bound, tolerance)


def would_pass(model: torch.Tensor, expected: torch.Tensor | Bounded, tolerance: Tolerance) -> bool:
    """Whether a whole output would pass. Looks at a few leading slices first, which is where a wrong one fails."""
    few = max(1, _SAMPLE // max(1, model[:1].numel())) if model.dim() else 1
    if model.dim() and model.shape[0] > few:
        if isinstance(expected, Bounded):
            head: torch.Tensor | Bounded = Bounded(expected.value[:few], expected.bound[:few])
        else:
            head = expected[:few]
        if not compare(model[:few], head, tolerance).ok:
            return False
    return compare(model, expected, tolerance).ok


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes: shape ``(*shape, itemsize)`` uint8, without a copy where strides allow it."""
    return tensor.contiguous().unsqueeze(-1).view(torch.uint8)


def _compare_bytes(found: torch.Tensor, expected: torch.Tensor) -> Comparison:
    if found.dtype != expected.dtype:
        return Comparison(False, "wrong dtype", str(expected.dtype), str(found.dtype))
    wrong = (as_bytes(found) != as_bytes(expected)).any(-1)
    if found.is_floating_point() and found.element_size() > 1:
        # IEEE leaves the payload and sign of a NaN open, and CPUs and GPUs differ; a byte of an 8-bit float is data
        wrong &= ~(torch.isnan(found) & torch.isnan(expected))
    count = int(wrong.sum())
    total = found.numel()
    figures = {"mismatches": float(count)}
    if not count:
        return Comparison(True, total=total, figures=figures)
    index = _unravel(int(wrong.reshape(-1).to(torch.uint8).argmax()), found.shape)
    return Comparison(
        False,
        f"{count} of {total} elements differ in their bytes ({count / total:.3%})",
        _show(expected, index),
        _show(found, index),
        f"first at {_place(index)}; {_spread(wrong)}",
        count,
        total,
        figures,
    )


def _compare_values(
    found: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | None, tolerance: Tolerance
) -> Comparison:
    total = found.numel()
    if total == 0:
        return Comparison(True)
    f, e = found.double(), expected.double()
    for name, predicate in (("NaN", torch.isnan), ("inf", torch.isposinf), ("-inf", torch.isneginf)):
        wrong = predicate(f) != predicate(e)
        count = int(wrong.sum())
        if count:
            index = _unravel(int(wrong.reshape(-1).to(torch.uint8).argmax()), found.shape)
            return Comparison(
                False,
                f"{name} in {count} places where the reference has none, or the reverse",
                _show(expected, index),
                _show(found, index),
                f"first at {_place(index)}; {_spread(wrong)}",
                count,
                total,
            )
    finite = torch.isfinite(e)
    error = torch.where(finite, (f - e).abs(), 0.0)
    limit = bound.to(f.device).double() if bound is not None else tolerance.atol + tolerance.rtol * e.abs()
    limit = torch.where(finite, limit, torch.inf)
    wrong = ~(error <= limit)
    rows = _row_errors(error, torch.where(finite, e, 0.0))
    figures = _quantiles(error, e.abs(), limit) | {"row_rel_max": float(rows.max())}
    count = int(wrong.sum())
    figures["mismatches"] = float(count)
    if count:
        # a ratio finds the worst element also where bounds differ; 0/0 cannot be wrong
        worst = int(torch.where(wrong, error / limit.clamp_min(1e-300), -1.0).reshape(-1).argmax())
        index = _unravel(worst, found.shape)
        return Comparison(
            False,
            f"{count} of {total} elements are outside the bound ({count / total:.3%})",
            f"{_show(expected, index)} +- {float(limit.reshape(-1)[worst]):.3g}",
            f"{_show(found, index)} (error {float(error.reshape(-1)[worst]):.3g})",
            f"worst at {_place(index)}; {_spread(wrong)}",
            count,
            total,
            figures,
        )
    if tolerance.row_rtol is not None and not float(rows.max()) <= tolerance.row_rtol:
        row = int(rows.argmax())
        return Comparison(
            False,
            "a row's relative error is too large",
            f"<= {tolerance.row_rtol:.3g}",
            f"{float(rows.max()):.3g}",
            f"row {_place(_unravel(row, found.shape[:-1]))}; {int((rows > tolerance.row_rtol).sum())} rows in all",
            total=total,
            figures=figures,
        )
    return Comparison(True, total=total, figures=figures)


def _row_errors(error: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """||error|| / ||expected|| of each row (last axis); a zero row with no error counts 0, with any error inf."""
    e = error.reshape(-1, error.shape[-1]) if error.dim() else error.reshape(1, 1)
    r = expected.reshape(e.shape)
    scale = r.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    top, base = (e / scale).norm(dim=-1), (r / scale).norm(dim=-1)
    return torch.where(top == 0, 0.0, top / base)


def _quantiles(error: torch.Tensor, magnitude: torch.Tensor, limit: torch.Tensor) -> dict[str, float]:
    """Quantiles of the error over the bound (1.0 is the edge), and the largest absolute and relative error."""
    ratio = torch.where(error == 0, 0.0, error / limit.clamp_min(1e-300)).reshape(-1)
    step = max(1, ratio.numel() // _SAMPLE)
    sample = ratio[::step].sort().values
    at = {q: float(sample[min(sample.numel() - 1, math.ceil(q * sample.numel()) - 1)]) for q in (0.5, 0.99, 0.999)}
    relative = torch.where(magnitude > 0, error / magnitude, 0.0)
    relative = torch.where(torch.isfinite(relative), relative, 0.0)
    return {
        "bound_used_p50": at[0.5],
        "bound_used_p99": at[0.99],
        "bound_used_p999": at[0.999],
        "bound_used_max": float(ratio.max()),
        "abs_max": float(error.max()),
        "rel_max": float(relative.max()),
    }


def _unravel(flat: int, shape: torch.Size | tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(tuple(shape)):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def _place(index: tuple[int, ...]) -> str:
    """``[3, 517] (tile 0, 4)``: the element, and the 128 x 128 tile it lies in."""
    place = "[" + ", ".join(map(str, index)) + "]"
    if len(index) < 2:
        return place
    return f"{place} (tile {index[-2] // TILE}, {index[-1] // TILE})"


def _show(tensor: torch.Tensor, index: tuple[int, ...]) -> str:
    value = tensor[index]
    if tensor.dtype is torch.uint8:
        return f"0x{int(value):02x}"
    if value.dtype.itemsize == 1 and value.dtype.is_floating_point:
        return f"{float(value):.6g} (byte 0x{int(value.view(torch.uint8)):02x})"
    return f"{float(value):.9g}" if value.dtype.is_floating_point else str(value.item())


def _spread(wrong: torch.Tensor) -> str:
    """How the wrong elements are spread: over how many rows, columns and tiles, and which leading slices."""
    if wrong.dim() < 2:
        return f"{int(wrong.sum())} of {wrong.numel()}"
    flat = wrong.reshape(-1, wrong.shape[-1])
    rows, columns = flat.any(1).nonzero().flatten(), flat.any(0).nonzero().flatten()
    row_tiles, column_tiles = set((rows // TILE).tolist()), set((columns // TILE).tolist())
    text = (
        f"{rows.numel()} of {flat.shape[0]} rows ({int(rows[0])}..{int(rows[-1])}), "
        f"{columns.numel()} of {flat.shape[1]} columns ({int(columns[0])}..{int(columns[-1])}), "
        f"{len(row_tiles)} x {len(column_tiles)} tiles"
    )
    if wrong.dim() >= 3:
        slices = wrong.reshape(wrong.shape[0], -1).any(1).nonzero().flatten().tolist()
        text += f", leading indices {slices[:8]}{'...' if len(slices) > 8 else ''}"
    return text
