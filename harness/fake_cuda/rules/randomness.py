"""Random operators: a capture knows only the generators that are registered with the graph."""

from __future__ import annotations

import torch

from harness.fake_cuda.findings import Severity
from harness.fake_cuda.op_call import Hits, OpCall


def randomness(call: OpCall) -> Hits:
    if not (call.on_device and call.has_tag("nondeterministic_seeded")):
        return
    if not any(isinstance(leaf, torch._C.Generator) for leaf in call.leaves):
        what = f"{call.name}: the default generator; torch.cuda.graph registers it and every replay draws anew"
        yield "rng", Severity.NOTE, what
    elif not call.generator_registered:
        what = f"{call.name}: its generator is not registered with the graph (CUDAGraph.register_generator_state)"
        yield "rng", Severity.BREAK, what
