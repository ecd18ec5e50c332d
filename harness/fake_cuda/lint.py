"""``lint_capture``: would a CUDA-graph capture of this call succeed, and would its replays be right?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from harness.fake_cuda.device import active_device
from harness.fake_cuda.fake_mode import storage_key
from harness.fake_cuda.findings import CaptureReport, Finding, Severity, TensorMeta
from harness.fake_cuda.watched_call import WatchedCall, Watcher


def lint_capture(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    out: Any = None,
    static: Iterable[torch.Tensor] = (),
    warmup: int = 2,
    generators: Iterable[torch._C.Generator] = (),
) -> CaptureReport:
    """Call ``fn(*args, **kwargs)`` ``warmup`` times, then twice as if captured, and report what a capture would meet.

    ``args`` are fake tensors of the enclosing ``fake_cuda`` block. ``static`` are further buffers that the owner of
    the graph keeps and updates in place; ``out`` is what was passed as the output, which the result must alias;
    ``generators`` are those registered with the graph.

    The second captured call is what finds replays that go wrong: whatever differs from the first (operators, Python
    constants, the addresses of hidden buffers) is frozen in a graph.
    """
    device = active_device()
    if device.listener is not None:
        raise RuntimeError("lint_capture is already running: it cannot be called from the function it lints")
    kwargs = kwargs or {}
    declared = [leaf for leaf in tree_leaves((args, kwargs, list(static), out)) if isinstance(leaf, torch.Tensor)]
    watcher = Watcher(device, declared, generators)
    for _ in range(warmup):
        watcher.call(fn, args, kwargs, captured=False)
    first = watcher.call(fn, args, kwargs, captured=True)
    second = watcher.call(fn, args, kwargs, captured=True)
    findings = _only_warmup(watcher.findings, warmup)
    findings += watcher.compared(first, second)
    findings += _out_ignored(first, out)
    return CaptureReport(
        findings=tuple(dict.fromkeys(findings)),
        op_trace=tuple(step.name for step in second.steps),
        device_ops=second.device_ops,
        result=tree_map(_look, second.result),
    )


def _only_warmup(findings: list[Finding], warmup: int) -> list[Finding]:
    """Demotes what happens in warm-up calls only; what also happens in a captured call is reported there."""
    again = {(finding.rule, finding.where) for finding in findings if finding.call > warmup}
    kept = []
    for finding in findings:
        early = 0 < finding.call <= warmup
        if early and (finding.rule, finding.where) in again:
            continue
        if early and finding.severity in (Severity.BREAK, Severity.HAZARD, Severity.ERROR):
            finding = Finding(finding.rule, Severity.WARMUP, finding.what, finding.where, finding.call)
        kept.append(finding)
    return kept


def _out_ignored(call: WatchedCall, out: Any) -> list[Finding]:
    if out is None or call.raised:
        return []
    returned = {storage_key(leaf) for leaf in tree_leaves(call.result) if isinstance(leaf, torch.Tensor)}
    wanted = {storage_key(leaf) for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)}
    if not returned or wanted <= returned:
        return []
    return [Finding("out-ignored", Severity.HAZARD, "out= was given, and other memory was returned", "", call.number)]


def _look(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return TensorMeta(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, leaf.device.type)
