"""The operations of the museum: inputs, references and one right way to compute each, small enough for any machine.

References are written from the definition in float64 (or in Python integers) and share no code with the right
implementations beside them.
"""

from __future__ import annotations

from typing import Any

import torch

from harness import Bounded, Case, Draw, Inputs

EPSILON = 1e-6


# -- rms_norm: x / sqrt(mean(x^2) + eps) * weight, row by row


def norm_inputs(case: Case, draw: Draw) -> Inputs:
    return {"x": draw.tensor(case["m"], case["k"]), "weight": draw.tensor(case["k"], regime="normal")}


def norm_reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x.double()
    return rows / ((rows * rows).sum(-1, keepdim=True) / rows.shape[-1] + EPSILON).sqrt() * weight.double()


def norm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """A right rms_norm: float32 inside, any strides, ``out=`` written in place."""
    rows = as_rows(x)
    result = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + EPSILON) * weight.contiguous().float()
    if out is None:
        return result.to(x.dtype)
    return out.copy_(result)


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """Contiguous float32 rows of a floating-point tensor; TypeError for another."""
    if not x.is_floating_point():
        raise TypeError(f"expected floating-point values, got {x.dtype}")
    return x.contiguous().float()


def norm_memory(case: Case) -> int:
    """Input, output and three float32 temporaries, with the allocator's blocks."""
    return case["m"] * case["k"] * (2 * case.itemsize + 12) + 64 * case["m"] + 8 * case["k"] + (1 << 14)


# -- matmul: a @ b in float32


def matmul_inputs(case: Case, draw: Draw) -> Inputs:
    return {"a": draw.tensor(case["m"], case["k"]), "b": draw.tensor(case["k"], case["n"])}


def matmul_reference(a: torch.Tensor, b: torch.Tensor) -> Bounded:
    """float64, with the bound of a float32 accumulation in any order: K * 2^-23 * (|a| @ |b|)."""
    x, y = a.double(), b.double()
    bound = (a.shape[1] + 1) * 2.0**-23 * (x.abs() @ y.abs())
    return Bounded(x @ y, bound + 1e-30)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A right product: float32 accumulation."""
    return a.contiguous().float() @ b.contiguous().float()


def matmul_memory(case: Case) -> int:
    m, k, n = case["m"], case["k"], case["n"]
    return (m * k + k * n) * (case.itemsize + 4) + 8 * m * n + (1 << 14)


# -- grouped matmul: rows of expert e (offsets[e] to offsets[e + 1]) times w[e]

SPLITS: dict[str, Any] = {
    "uniform": lambda m, e: [m * (i + 1) // e for i in range(e)],
    "all-to-one": lambda m, e: [0] * (e // 2) + [m] * (e - e // 2),
    "first-empty": lambda m, e: [0] + [m * (i + 1) // (e - 1) for i in range(e - 1)],
    "middle-empty": lambda m, e: (
        [m * min(i + 1, e // 2) // (e - 1) for i in range(e // 2)]
        + [m * max(i, 0) // (e - 1) for i in range(e // 2, e)]
    ),
    "last-empty": lambda m, e: [m * (i + 1) // (e - 1) for i in range(e - 1)] + [m],
    "straddling": lambda m, e: [min(m, 33 * (i + 1)) for i in range(e - 1)] + [m],
    "tail-unrouted": lambda m, e: [m * (i + 1) // (e + 1) for i in range(e)],
}
"""End of each expert's rows. In ``tail-unrouted`` the last rows belong to no expert, and their result is zero."""


def grouped_inputs(case: Case, draw: Draw) -> Inputs:
    ends = SPLITS[str(case.routing)](case["m"], case["e"])
    offsets = torch.tensor([0, *ends], dtype=torch.int32)
    return {
        "x": draw.tensor(case["m"], case["k"]),
        "w": draw.tensor(case["e"], case["k"], case["n"]),
        "offsets": draw.put(offsets),
    }


def grouped_reference(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> Bounded:
    value = torch.zeros(x.shape[0], w.shape[2], dtype=torch.float64, device=x.device)
    size = torch.zeros_like(value)
    ends = offsets.tolist()
    for expert in range(w.shape[0]):
        rows = slice(ends[expert], ends[expert + 1])
        value[rows] = x[rows].double() @ w[expert].double()
        size[rows] = x[rows].double().abs() @ w[expert].double().abs()
    return Bounded(value, (x.shape[1] + 1) * 2.0**-23 * size)


def grouped(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """A right grouped product without host reads: every expert times every row, of which one is kept."""
    _same_types(x, w)
    row = torch.arange(x.shape[0], device=x.device)
    expert = torch.bucketize(row, offsets[1:].contiguous(), right=True)
    out = torch.zeros(x.shape[0], w.shape[2], device=x.device)
    for index in range(w.shape[0]):
        product = x.contiguous().float() @ w[index].contiguous().float()
        out = torch.where((expert == index).unsqueeze(1), product, out)
    return out


def _same_types(x: torch.Tensor, w: torch.Tensor) -> None:
    if x.dtype != w.dtype or x.dtype not in (torch.bfloat16, torch.float32):
        raise TypeError(f"x and w must both be bf16 or fp32, got {x.dtype} and {w.dtype}")


# -- clamped SwiGLU of [gate | up]

LIMIT = 2.0
"""Low enough that ordinary data reach it: a limit that is never met is not tested."""


def swiglu_inputs(case: Case, draw: Draw) -> Inputs:
    """Gate and up of different sizes, and a scale for each half, so that no two of them can be exchanged unseen."""
    gate_up = draw.tensor(case["m"], 2 * case["n"])
    if case.regime == "normal":
        gate_up[:, : case["n"]] *= 2.0
        gate_up[:, case["n"] :] += 0.5
    return {"gate_up": gate_up, "gate_scale": draw.full(1.25), "up_scale": draw.full(0.5)}


def swiglu_reference(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    n = gate_up.shape[1] // 2
    gate = (gate_up[:, :n].double() * gate_scale.double()).clamp(max=LIMIT)
    up = (gate_up[:, n:].double() * up_scale.double()).clamp(-LIMIT, LIMIT)
    return gate / (1 + (-gate).exp()) * up


def swiglu(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.contiguous().float().chunk(2, dim=-1)
    gate = (gate * gate_scale).clamp(max=LIMIT)
    up = (up * up_scale).clamp(-LIMIT, LIMIT)
    return torch.nn.functional.silu(gate) * up


# -- affine: 2 x + y, for faults that are not about arithmetic


def affine_inputs(case: Case, draw: Draw) -> Inputs:
    return {"x": draw.tensor(case["m"], case["k"]), "y": draw.tensor(case["m"], case["k"])}


def affine_reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 2.0 * x.double() + y.double()


def affine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 2 * x + y


def affine_memory(case: Case) -> int:
    """Two inputs, one result and one temporary, each rounded up to the allocator's 512 bytes."""
    return 4 * (case["m"] * case["k"] * case.itemsize + 512)


# -- slots: position of each token in a paged cache, through a block table

BLOCK = 8


def slot_inputs(case: Case, draw: Draw) -> Inputs:
    """Requests of different lengths; -1 marks padding, and blocks are numbered in no order."""
    requests, width = case["requests"], case["width"]
    table = draw.make(
        lambda s, g: torch.randperm(s[0] * s[1] * 2, generator=g)[: s[0] * s[1]].reshape(s),
        requests,
        width,
        dtype="i32",
        name="table",
    )
    request = draw.integers(0, requests, case["m"], dtype="i32", name="request")
    position = draw.integers(-1, width * BLOCK + BLOCK, case["m"], dtype="i32", name="position")
    return {"table": table, "request": request, "position": position}


def slot_reference(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Slot, or -1 for padding and for positions past the table, in plain integers."""
    blocks, slots = table.tolist(), []
    for owner, at in zip(request.tolist(), position.tolist(), strict=True):
        inside = 0 <= at < len(blocks[0]) * BLOCK if blocks else False
        slots.append(blocks[owner][at // BLOCK] * BLOCK + at % BLOCK if inside else -1)
    return torch.tensor(slots, dtype=torch.int64, device=table.device)


def slots(table: torch.Tensor, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """A right lookup: out-of-range positions are looked up at 0 and replaced afterwards."""
    for name, value in (("table", table), ("request", request), ("position", position)):
        if value.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} must be int32 or int64, got {value.dtype}")
    column = torch.div(position.long(), BLOCK, rounding_mode="floor")
    inside = (position >= 0) & (column < table.shape[1])
    block = table[request.long(), torch.where(inside, column, 0)].long()
    return torch.where(inside, block * BLOCK + position.long() % BLOCK, -1)
