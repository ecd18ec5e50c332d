"""Operators outside torch's own: what they declare, and what cannot be seen of them."""

from __future__ import annotations

from harness.fake_cuda.findings import Severity
from harness.fake_cuda.look_into import kernel_to_look_into
from harness.fake_cuda.op_call import Hits, OpCall

_OWN = frozenset({"aten", "prim", "prims"})


def declared_unsafe(call: OpCall) -> Hits:
    if call.on_device and call.has_tag("cudagraph_unsafe"):
        yield "declared-unsafe", Severity.BREAK, f"{call.name} is tagged cudagraph_unsafe by its author"


def not_looked_into(call: OpCall) -> Hits:
    if call.on_device and call.func.namespace not in _OWN and kernel_to_look_into(call.func, "cuda") is None:
        what = f"{call.name} is not looked into: its fake gives the shapes, what it does on the device is not seen"
        yield "opaque", Severity.NOTE, what
