"""``lint_capture``: would a CUDA-graph capture of this call succeed, and would its replays be right?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
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
    findings = _settled(watcher.findings, warmup)
    findings += watcher.compared(first, second)
    findings += _out_ignored(first, out)
    # the calls before may still have settled something; the eager call to compare with is one that comes after
    findings += _captured_otherwise(first, watcher.call(fn, args, kwargs, captured=False))
    if not (second.device_ops or second.raised):
        what = "the call puts no work on the device: a capture of it is an empty graph"
        severity = Severity.HAZARD if _returns_new_memory(second, declared) else Severity.NOTE
        findings.append(Finding("empty-graph", severity, what, "", second.number))
    return CaptureReport(
        findings=tuple(dict.fromkeys(findings)),
        op_trace=tuple(step.name for step in second.steps),
        device_ops=second.device_ops,
        result=tree_map(_look, second.result),
    )


def _settled(findings: list[Finding], warmup: int) -> list[Finding]:
    """Each finding once, by its first captured call; one that only warm-up calls made is demoted."""
    captured = {(finding.rule, finding.where) for finding in findings if finding.call > warmup}
    kept: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        early = finding.call <= warmup
        if early and (finding.rule, finding.where) in captured:
            continue
        if early:
            finding = replace(finding, severity=Severity.WARMUP)
        kept.setdefault((finding.rule, finding.what, finding.where), finding)
    return list(kept.values())


def _captured_otherwise(captured: WatchedCall, eager: WatchedCall) -> list[Finding]:
    """A captured call must put on the device what an eager call puts there."""
    if captured.raised or eager.raised or captured.device_ops == eager.device_ops:
        return []
    what = f"a captured call does {captured.device_ops} operations on the device, an eager one {eager.device_ops}"
    return [Finding("captured-otherwise", Severity.HAZARD, what, "", captured.number)]


def _returns_new_memory(call: WatchedCall, declared: list[torch.Tensor]) -> bool:
    """Whether a result lies outside the inputs: somebody had to write it. Views of inputs need no work."""
    given = {storage_key(tensor) for tensor in declared}
    results = (leaf for leaf in tree_leaves(call.result) if isinstance(leaf, torch.Tensor))
    return any(leaf.device.type == "cuda" and leaf.numel() and storage_key(leaf) not in given for leaf in results)


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
