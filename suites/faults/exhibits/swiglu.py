"""SwiGLU of two fused halves: exchanged, interleaved, scaled with the wrong scale, not clamped."""

from __future__ import annotations

import torch

from harness import Contract, Tolerance, grid, register
from suites.faults.operations import LIMIT, swiglu, swiglu_inputs, swiglu_reference
from suites.faults.rooms import ALL, Room

ROOM = Room(
    "museum_swiglu",
    doc="silu(min(gate, L)) * clamp(up, -L, L) of [gate | up], each half with a scale of its own",
    inputs=swiglu_inputs,
    reference=swiglu_reference,
    cases=grid(m=9, n=[24, 10], dtype="fp32") + grid(m=9, n=24, dtype="fp32", regime=["normal-large", "zeros"]),
    tolerance=Tolerance(rtol=1e-5, atol=1e-6),
    contract=Contract(strided=("gate_up",)),
)
silu = torch.nn.functional.silu


@ROOM.awkward("the plain right implementation", worlds=ALL)
def swiglu_plain(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    return swiglu(_checked(gate_up), gate_scale, up_scale)


@ROOM.awkward("interleaves the halves for its own kernel and undoes it", worlds=ALL)
def swiglu_interleaved_inside(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    gate, up = _checked(gate_up).float().chunk(2, dim=-1)
    pairs = torch.stack((gate * gate_scale, up * up_scale), -1).flatten(-2)
    return silu(pairs[:, 0::2].clamp(max=LIMIT)) * pairs[:, 1::2].clamp(-LIMIT, LIMIT)


@ROOM.fault("K07", gate="correctness", mirrors="sglang#32430, Megatron-LM#6045", severity="critical")
def swiglu_halves_exchanged(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    """[up | gate] is expected where [gate | up] is given."""
    gate, up = _checked(gate_up).chunk(2, dim=-1)
    return swiglu(torch.cat((up, gate), -1), up_scale, gate_scale)


@ROOM.fault("K07", gate="correctness", mirrors="public commit log", severity="critical")
def swiglu_taken_as_interleaved(
    gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor
) -> torch.Tensor:
    """Concatenated halves are read as if interleaved."""
    x = _checked(gate_up)
    return swiglu(torch.cat((x[:, 0::2], x[:, 1::2]), -1), gate_scale, up_scale)


@ROOM.fault("K07", gate="correctness", mirrors="TensorRT-LLM#14199, vllm#54974", severity="critical")
def swiglu_one_scale_for_both(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    """The larger of the two scales is used for both halves (noticed, warned about, and used anyway)."""
    shared = torch.maximum(gate_scale, up_scale)
    return swiglu(_checked(gate_up), shared, shared)


@ROOM.fault("K07", gate="correctness", mirrors="vllm#54974", severity="critical")
def swiglu_up_scale_forgotten(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    """The scale of the up half is forgotten: its cosine to the truth stays 1 where no limit is met."""
    return swiglu(_checked(gate_up), gate_scale, torch.ones_like(up_scale))


@ROOM.fault("K07", gate="correctness", mirrors="vllm#45738")
def swiglu_limit_ignored(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    """The clamp limit is accepted and ignored."""
    gate, up = _checked(gate_up).float().chunk(2, dim=-1)
    return silu(gate * gate_scale) * (up * up_scale)


@ROOM.fault("K07", gate="correctness", mirrors="vllm#45738", severity="medium")
def swiglu_gate_clamped_below(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    """The gate is clamped on both sides; only its upper side should be."""
    gate, up = _checked(gate_up).float().chunk(2, dim=-1)
    return silu((gate * gate_scale).clamp(-LIMIT, LIMIT)) * (up * up_scale).clamp(-LIMIT, LIMIT)


@ROOM.fault("K07", gate="correctness", mirrors="vllm#45738", severity="medium")
def swiglu_clamp_before_scale(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    """The limit is applied before the scales."""
    gate, up = _checked(gate_up).float().chunk(2, dim=-1)
    return silu(gate.clamp(max=LIMIT) * gate_scale) * (up.clamp(-LIMIT, LIMIT) * up_scale)


@ROOM.fault("K07", gate="correctness", mirrors="TensorRT-LLM#10148; end padding of a fused half")
def swiglu_padded_at_the_end(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    """The fused tensor is padded at its end to a multiple of 16, and then cut in the middle."""
    x = _checked(gate_up).float()
    n = x.shape[1] // 2
    wide = torch.nn.functional.pad(x, (0, -x.shape[1] % 32))
    gate, up = wide.chunk(2, dim=-1)
    return (silu((gate * gate_scale).clamp(max=LIMIT)) * (up * up_scale).clamp(-LIMIT, LIMIT))[:, :n].contiguous()


@ROOM.fault("K23", gate="correctness", mirrors="cosine of SwiGLU at small inputs is 0.993 when swapped")
def swiglu_silu_on_up(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    """silu is applied to the up half."""
    gate, up = _checked(gate_up).float().chunk(2, dim=-1)
    return (gate * gate_scale).clamp(max=LIMIT) * silu((up * up_scale).clamp(-LIMIT, LIMIT))


@ROOM.fault("K05", gate="correctness", mirrors="fast-math exp, Triton tl.exp2 approximations", severity="medium")
def swiglu_coarse_sigmoid(gate_up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor) -> torch.Tensor:
    """The sigmoid is taken from a table of 256 steps, without interpolation."""
    gate, up = _checked(gate_up).float().chunk(2, dim=-1)
    gate = (gate * gate_scale).clamp(max=LIMIT)
    rough = torch.sigmoid((gate * 32).round() / 32)
    return gate * rough * (up * up_scale).clamp(-LIMIT, LIMIT)


def _checked(gate_up: torch.Tensor) -> torch.Tensor:
    if not gate_up.is_floating_point():
        raise TypeError(f"gate_up must be floating-point, got {gate_up.dtype}")
    return gate_up.contiguous()


register(ROOM.suite())
