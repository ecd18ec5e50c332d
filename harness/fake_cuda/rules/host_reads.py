"""Operators that make the host wait for a value: by their tags, and those whose kernels do it untagged."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.fake_cuda.fake_mode import storage_key
from harness.fake_cuda.findings import Severity
from harness.fake_cuda.op_call import Hits, OpCall, on_cuda
from harness.fake_cuda.rules.indexing import INDEXING


def host_reads(call: OpCall) -> Hits:
    if not call.on_device or call.name in INDEXING:
        return
    if call.packet == "aten._local_scalar_dense":
        what = f"the host reads a device value ({call.args[0].dtype}): .item(), bool(), int(), float(), a slice bound"
        yield "host-sync", Severity.BREAK, what
    elif call.packet == "aten.equal":
        if _must_compare(call.args[0], call.args[1]):
            yield "host-sync", Severity.BREAK, "torch.equal: the result is read on the host"
    elif call.has_tag("dynamic_output_shape"):
        if call.packet == "aten.repeat_interleave" and call.kwargs.get("output_size") is not None:
            return
        what = f"{call.name}: the shape of the result depends on data, so the host waits for it"
        yield "data-dependent-shape", Severity.BREAK, what
    elif call.has_tag("data_dependent_output"):
        yield "host-sync", Severity.BREAK, f"{call.name}: the result is read on the host"
    elif (synchronises := _UNTAGGED.get(call.packet)) is not None and synchronises(call):
        what = f"{call.name}: its CUDA kernel synchronises inside (the schema has no tag for it)"
        yield "host-sync", Severity.BREAK, what


def _must_compare(first: torch.Tensor, second: torch.Tensor) -> bool:
    """torch answers without a kernel for different sizes, for nothing, and for one tensor given twice.

    So ``torch.equal(x, x)`` captures: measured on an H200.
    """
    same = (
        storage_key(first) == storage_key(second)
        and first.storage_offset() == second.storage_offset()
        and first.dtype == second.dtype
        and first.stride() == second.stride()
    )
    return first.shape == second.shape and first.numel() > 0 and not same


def _without_range(call: OpCall) -> bool:
    """``histc`` without a range reads minimum and maximum."""
    return call.argument(2, "min", 0) == 0 == call.argument(3, "max", 0)


def _by_sorting(call: OpCall) -> bool:
    """``isin`` compares all pairs for few test elements and calls ``unique`` for many (at::native::isin)."""
    elements, test = call.args[:2]
    if not (isinstance(test, torch.Tensor) and isinstance(elements, torch.Tensor)):
        return False
    return bool(test.numel() >= 10 * elements.numel() ** 0.145)


def _value_on_device(call: OpCall) -> bool:
    """``masked_fill`` and ``index_fill`` with a 0-d device tensor call ``.item()`` on it."""
    return on_cuda(call.args[-1])


def _always(call: OpCall) -> bool:
    return any(map(on_cuda, call.tensors))


_UNTAGGED: dict[str, Callable[[OpCall], bool]] = {
    "aten.allclose": _always,
    "aten.histc": _without_range,
    "aten.isin": _by_sorting,
    "aten.is_nonzero": _always,
    "aten._linalg_check_errors": _always,
    "aten.embedding_renorm_": _always,
    "aten.unique_dim_consecutive": _always,
    "aten._assert_scalar": _always,
    "aten.masked_fill": _value_on_device,
    "aten.masked_fill_": _value_on_device,
    "aten.index_fill": _value_on_device,
    "aten.index_fill_": _value_on_device,
}
