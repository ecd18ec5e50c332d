"""NVFP4 quantisers: special values, rounding, and the ten wrong quantisers of ``suites.faults.quantizers``."""

from __future__ import annotations

from typing import Any

import torch

from harness import Case, Contract, Draw, Inputs, grid, register
from kernels.nvfp4 import quantize_activation_nvfp4, quantize_weight_to_nvfp4
from suites.faults.quantizers import WRONG_QUANTIZERS
from suites.faults.quantizers._steps import quantize_by_steps, right_scale
from suites.faults.rooms import ALL, CAPTURE, CPU, Room
from suites.nvfp4 import oracle
from suites.nvfp4.suite_quantize import peak
from suites.nvfp4.values import SPECIAL


def _inputs(case: Case, draw: Draw) -> Inputs:
    """A global scale of 1 for the special values, else one under which some of the data saturate."""
    scale = {"normal-small": 1e-9}.get(case.regime, 2.0**-9 * (1.2345 + draw.salt))
    return {
        "x": draw.tensor(case["m"], case["k"]),
        "global_scale": draw.full(1.0 if case.regime in SPECIAL else scale),
    }


def _reference(x: torch.Tensor, global_scale: torch.Tensor) -> Any:
    return oracle.quantize(x, global_scale)


CASES = grid(m=17, k=96, dtype="fp32", regime=["normal", "normal-small", "zero-block", "huge", *SPECIAL]) + grid(
    m=5, k=48, dtype="bf16"
)

ROOM = Room(
    "museum_quantize",
    doc="NVFP4 codes and block scales under a given global scale, byte by byte",
    inputs=_inputs,
    reference=_reference,
    outputs=("codes", "scales"),
    cases=(*CASES, *grid(m=8192, k=7168, dtype="bf16", worlds=CAPTURE)),
    contract=Contract(rows=("x",), compilable=True),
    memory=peak,
)

Pair = tuple[torch.Tensor, torch.Tensor]


@ROOM.awkward("the right quantiser, in chunks with workspaces of its own", worlds=ALL)
def quantize_plain(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    return quantize_activation_nvfp4(x, global_scale)


@ROOM.awkward("the right steps as separate functions", worlds=CPU, compilable=False)
def quantize_steps(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32) or global_scale.dtype is not torch.float32:
        raise TypeError("x must be bf16, fp16 or fp32 and global_scale fp32")
    return quantize_by_steps(x, global_scale)


_KINDS = {
    "half_step_table_13": ("K05", "public commit log"),
    "distance_8way": ("K10", "public commit log"),
    "table_by_torch_tensor": ("K08", "public commit log, flashinfer#4102"),
    "table_by_new_tensor": ("K08", "public commit log"),
    "lock_in_call": ("K21", "public commit log"),
    "clamp_1e8_no_zero_handling": ("K04", "public commit log"),
    "zero_threshold_2e_9": ("K04", "public commit log"),
    "n_doubled": ("K12", "public commit log"),
    "random_bytes_as_scale": ("K23", "public commit log"),
}
for _name, _function, _gate in WRONG_QUANTIZERS:
    if _name in _KINDS:
        _kind, _mirrors = _KINDS[_name]
        ROOM.fault(
            _kind,
            gate=_gate,
            mirrors=_mirrors,
            severity="critical" if _gate == "correctness" else "high",
            worlds=CAPTURE if _gate in ("capture", "memory") else CPU,
            luck=_name in ("n_doubled", "random_bytes_as_scale"),
            runs=ALL,
            name=_name,
        )(_function)


@ROOM.fault("K05", gate="correctness", mirrors="aiter#3992, #4030", severity="critical")
def quantize_ties_away(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """Midpoints round away from zero: `>=` at every boundary (randn in fp32 meets a midpoint in 0 of 1M values)."""
    bounds = torch.arange(8, device=x.device).new_empty(7, dtype=torch.float32)
    for index, value in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        bounds[index] = value
    return quantize_by_steps(
        x,
        global_scale,
        codes=lambda a: torch.bucketize(a.contiguous().nan_to_num_(nan=6.0, posinf=6.0), bounds, right=True),
    )


@ROOM.fault("K05", gate="correctness", mirrors="FreeToken#85", severity="high")
def quantize_scale_truncated(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """Block scales are truncated to E4M3, not rounded."""

    def scale(s: torch.Tensor) -> torch.Tensor:
        rounded = right_scale(s)
        below = torch.where(rounded.float() > s, rounded.view(torch.uint8) - 1, rounded.view(torch.uint8))
        return below.view(torch.float8_e4m3fn)

    return quantize_by_steps(x, global_scale, scale=scale)


@ROOM.fault("K05", gate="correctness", mirrors="ao#4725, FreeToken#85")
def quantize_scale_through_bf16(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """Block scales pass through bf16 on their way to E4M3: they are rounded twice."""
    return quantize_by_steps(x, global_scale, scale=lambda s: right_scale(s.to(torch.bfloat16).float()))


@ROOM.fault("K04", gate="correctness", mirrors="Model-Optimizer#1633, pytorch#178817", severity="critical")
def quantize_scale_overflows_to_nan(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """A block scale above 448 becomes the NaN byte, as a cast that does not saturate gives."""

    def scale(s: torch.Tensor) -> torch.Tensor:
        return torch.where(s > 464, 0x7F, right_scale(s.clone()).view(torch.uint8)).view(torch.float8_e4m3fn)

    return quantize_by_steps(x, global_scale, scale=scale)


@ROOM.fault("K04", gate="correctness", mirrors="ao#4598 and TransformerEngine disagree")
def quantize_zero_block_gets_epsilon(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """An all-zero block gets the smallest scale and not zero."""
    return quantize_by_steps(x, global_scale, scale=lambda s: right_scale(s.clamp_(min=2.0**-9)))


@ROOM.fault("K04", gate="correctness", mirrors="Model-Optimizer#1898")
def quantize_zero_block_divides(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """The guard of the block scale is gone: 0 / 0 in a block of zeros, which becomes code 6."""
    return quantize_by_steps(x, global_scale, divisor=lambda value, g: value * g)


@ROOM.fault("K04", gate="correctness", mirrors="vllm#34577")
def quantize_by_reciprocal(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """The divisor is the reciprocal of a reciprocal, rounded twice: other codes at the midpoints."""
    return quantize_by_steps(x, global_scale, scale=lambda s: right_scale(s), divisor=_rounded_reciprocal)


def _rounded_reciprocal(value: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    exact = (value * global_scale).masked_fill_(value == 0, torch.inf)
    return 1.0 / (1.0 / exact)


@ROOM.fault("K05", gate="correctness", mirrors="signed zero, ao golden bytes", severity="low")
def quantize_drops_sign_of_small(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """Small negative values become +0: code 0 where the contract has 8."""
    codes, scales = quantize_activation_nvfp4(x, global_scale)
    low, high = codes & 15, codes >> 4
    return torch.where(low == 8, 0, low) | (torch.where(high == 8, 0, high) << 4), scales


@ROOM.fault("K07", gate="correctness", mirrors="nibble order of packed FP4", severity="critical")
def quantize_nibbles_exchanged(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """The first element goes to the high nibble."""
    codes, scales = quantize_activation_nvfp4(x, global_scale)
    return (codes << 4) | (codes >> 4), scales


@ROOM.fault("K06", gate="correctness", mirrors="flashinfer#3398", severity="critical")
def quantize_scales_zero_for_some_m(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """The scale buffer is left zero when the number of rows is odd."""
    codes, scales = quantize_activation_nvfp4(x, global_scale)
    return (codes, torch.zeros_like(scales)) if x.shape[0] % 2 else (codes, scales)


register(ROOM.suite())


def _weights(case: Case, draw: Draw) -> Inputs:
    return {"w": draw.tensor(case["n"], case["k"])}


def _weight_reference(w: torch.Tensor) -> Any:
    scale = oracle.global_scale(w)
    return *oracle.quantize(w, scale), scale


WEIGHTS = Room(
    "museum_quantize_weight",
    doc="NVFP4 codes, block scales and global scale of a weight, blocks along K",
    inputs=_weights,
    reference=_weight_reference,
    outputs=("codes", "scales", "global_scale"),
    cases=grid(n=48, k=64, dtype="fp32"),
    contract=Contract(capturable=False),
)


@WEIGHTS.awkward("the right weight quantiser", worlds=ALL)
def weight_plain(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return quantize_weight_to_nvfp4(w)


WEIGHTS.fault(
    "K16", gate="correctness", mirrors="public commit log", severity="critical", name="weight_packs_wrong_axis"
)(next(function for name, function, _ in WRONG_QUANTIZERS if name == "weight_packs_wrong_axis"))


@WEIGHTS.fault("K04", gate="correctness", mirrors="vllm#34577, public commit log", severity="critical")
def weight_encode_scale_returned(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The reciprocal global scale of other libraries is returned under the name of this one."""
    codes, scales, global_scale = quantize_weight_to_nvfp4(w)
    return codes, scales, 1.0 / global_scale


register(WEIGHTS.suite())
