"""Operators outside torch's own: what they declare, and what cannot be seen of them."""

from __future__ import annotations

from harness.custom_ops import is_opaque
from harness.fake_cuda.findings import Severity
from harness.fake_cuda.op_call import Hits, OpCall


def declared_unsafe(call: OpCall) -> Hits:
    if call.on_device and call.has_tag("cudagraph_unsafe"):
        yield "declared-unsafe", Severity.BREAK, f"{call.name} is tagged cudagraph_unsafe by its author"


def not_looked_into(call: OpCall) -> Hits:
    if call.on_device and is_opaque(call.func, "cuda"):
        what = f"{call.name} is compiled code: its fake gives the shapes, what it does on the device is not seen"
        yield "opaque", Severity.NOTE, what
