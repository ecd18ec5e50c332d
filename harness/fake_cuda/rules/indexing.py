"""Advanced indexing, whose tags say little: ``aten.index.Tensor`` is tagged dynamic for integer indices too.

What torch's CUDA kernels do: an index tensor on the CPU (a Python list is one) is copied to the device inside; a
boolean mask goes through ``nonzero``, which synchronises; ``y[mask] = scalar`` becomes ``masked_fill_`` and is safe;
any other Python scalar assigned through an index is copied to the device inside.
"""

from __future__ import annotations

import torch

from harness.fake_cuda.findings import Severity
from harness.fake_cuda.op_call import Hits, OpCall, on_cpu, on_cuda

INDEXING = frozenset(
    {
        "aten.index.Tensor",
        "aten._unsafe_index.Tensor",
        "aten.index_put.default",
        "aten.index_put_.default",
        "aten._index_put_impl_.default",
        "aten._unsafe_index_put.default",
    }
)


def indexing(call: OpCall) -> Hits:
    if call.name not in INDEXING or not on_cuda(call.args[0]):
        return
    indices = [index for index in call.args[1] if index is not None]
    masks = [index for index in indices if on_cuda(index) and index.dtype in (torch.bool, torch.uint8)]
    value = call.argument(2, "values")
    fills_mask = (
        "put" in call.packet
        and len(indices) == len(masks) == 1
        and on_cpu(value)
        and value.numel() == 1
        and not call.argument(3, "accumulate", False)
    )
    if any(on_cpu(index) and index.dim() for index in indices):
        what = f"{call.name} with an index on the CPU (a Python list is one): it is copied to the device inside"
        yield "host-to-device", Severity.BREAK, what
    if masks and not fills_mask:
        what = f"{call.name} with a boolean mask: nonzero inside, which synchronises"
        yield "data-dependent-shape", Severity.BREAK, what
    if on_cpu(value) and not fills_mask:
        what = f"{call.name} with a value on the CPU (a Python scalar is one): it is copied to the device inside"
        yield "host-to-device", Severity.BREAK, what
