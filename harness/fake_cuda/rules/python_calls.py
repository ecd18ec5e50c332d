"""Tensor methods that never reach the dispatcher for a fake tensor, seen as Python calls."""

from __future__ import annotations

from harness.fake_cuda.findings import Severity
from harness.fake_cuda.op_call import Hit

PYTHON_CALLS: dict[str, Hit] = {
    "Tensor.__repr__": (
        "host-sync",
        Severity.BREAK,
        "prints a device tensor: its values are copied to the host",
    ),
    "Tensor.__format__": (
        "host-sync",
        Severity.BREAK,
        "formats a device tensor (f-string, str.format, print)",
    ),
    "TensorBase.numpy": ("host-sync", Severity.BREAK, "Tensor.numpy()"),
    "Tensor.__array__": ("host-sync", Severity.BREAK, "np.asarray(tensor)"),
    "TensorBase.data_ptr": (
        "baked-pointer",
        Severity.NOTE,
        "data_ptr() is read on the host: a launch made with it keeps the address",
    ),
}
"""By qualified name of the method; the finding applies when the tensor is on the device."""
