"""Copies between host and device.

``torch.tensor(values, device="cuda")``, ``as_tensor`` and ``new_tensor`` build a pageable CPU tensor and copy it, so
they are host-to-device copies too. ``torch.full``, ``scalar_tensor`` and ``arange`` are single fill kernels: the
right way to make a constant.
"""

from __future__ import annotations

import torch

from harness.fake_cuda.findings import Severity
from harness.fake_cuda.op_call import Hit, Hits, OpCall, on_cpu, on_cuda

_COPY_INTO = frozenset({"aten.copy_", "aten.copy", "aten._copy_from"})


def copies(call: OpCall) -> Hits:
    if call.packet == "aten._to_copy":
        source = call.args[0]
        target = torch.device(call.kwargs.get("device") or source.device).type
        if source.device.type == "cpu" and target == "cuda":
            yield _host_to_device(call, source)
        elif source.device.type == "cuda" and target == "cpu":
            # .to("cpu", non_blocking=True) allocates its destination pinned
            yield _device_to_host(bool(call.kwargs.get("non_blocking")), pinned=True)
    elif call.packet in _COPY_INTO:
        destination, source = call.args[:2]
        non_blocking = bool(call.argument(2, "non_blocking", False))
        if on_cpu(source) and on_cuda(destination):
            yield _host_to_device(call, source)
        elif on_cuda(source) and on_cpu(destination):
            yield _device_to_host(non_blocking, call.is_pinned(destination))
    elif call.packet == "aten.where" and call.on_device and any(map(on_cpu, call.tensors)):
        # the one pointwise operator that copies a CPU scalar tensor over, instead of passing its value to the kernel
        yield (
            "host-to-device",
            Severity.BREAK,
            "torch.where with a tensor on the CPU: it is copied to the device inside",
        )
    elif call.packet == "aten._pin_memory" or call.kwargs.get("pin_memory"):
        what = "pinned memory is allocated inside the call: done at capture, and freed while the graph may read it"
        yield "pinned-allocation", Severity.HAZARD, what
    elif call.packet == "aten.lift_fresh" and on_cuda(call.args[0]):
        # the form this takes where torch copies below the dispatcher (CUDA builds, device initialised)
        yield (
            "host-to-device",
            Severity.BREAK,
            "torch.tensor(python data, device='cuda') is a copy from pageable memory",
        )


def _host_to_device(call: OpCall, source: torch.Tensor) -> Hit:
    non_blocking = bool(
        call.argument(2, "non_blocking", False) if call.packet in _COPY_INTO else call.kwargs.get("non_blocking")
    )
    described = f"{tuple(source.shape)} {source.dtype}"
    if not call.is_pinned(source):
        form = "torch.tensor(.., device='cuda'), as_tensor, new_tensor, .to(device)"
        extra = "; non_blocking does not help" if non_blocking else ""
        return "host-to-device", Severity.BREAK, f"copy of {described} from pageable memory ({form}){extra}"
    if not non_blocking:
        return (
            "host-to-device",
            Severity.BREAK,
            f"blocking copy of {described} from pinned memory: synchronises",
        )
    what = f"non_blocking copy of {described} from pinned memory: each replay reads the host buffer again"
    return "host-to-device", Severity.HAZARD, what


def _device_to_host(non_blocking: bool, pinned: bool) -> Hit:
    if non_blocking and pinned:
        what = "non_blocking copy to the host: a replay overwrites the buffer, and nobody waits for it"
        return "device-to-host", Severity.HAZARD, what
    reason = "non_blocking, but the destination is pageable" if non_blocking else "blocking"
    return "device-to-host", Severity.BREAK, f"copy to the host ({reason})"
