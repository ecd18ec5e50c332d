"""Determinism: the same bits again, and rows that do not notice each other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from harness.gates.base import Gate
from harness.trial import Trial, check_same, clone, same_bits, tensors_of
from harness.verdict import Findings

REPEATS = {"cpu": 8, "cuda": 20}

THREAD_CALLS = 10
"""Calls of each host thread. Scratch memory shared by two is mixed up within the first few."""


class Determinism(Gate):
    """Repeats are bitwise equal under jitter, A-B-A leaves no trace, and rows keep their bits in any batch."""

    name: ClassVar[str] = "determinism"
    worlds: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    def judge(self, trial: Trial, findings: Findings) -> None:
        inputs = trial.inputs()
        first = clone(trial.call(clone(inputs)))
        if not trial.contract.deterministic:
            findings.note("declared not deterministic: repeats are held to the tolerance only")
            expected = trial.reference(inputs)
            for _ in range(REPEATS[trial.world.name]):
                trial.compare(trial.call(clone(inputs)), expected, findings, "repeat: ")
            return
        with _jitter(trial):
            for number in range(REPEATS[trial.world.name]):
                check_same(trial.call(clone(inputs)), first, findings, f"repeat {number + 1}: ")
        trial.call(trial.inputs(salt=1))
        check_same(trial.call(clone(inputs)), first, findings, "A-B-A: ")
        if trial.world.name == "cuda":
            _two_streams(trial, inputs, first, findings)
        else:
            _two_threads(trial, inputs, first, findings)
        if trial.contract.rows:
            _rows(trial, inputs, first, findings)


def _rows(trial: Trial, inputs: dict[str, Any], full: dict[str, Any], findings: Findings) -> None:
    """Cut and permute the leading axis of the row inputs; each row's result must keep its bits."""
    names = trial.contract.rows
    count = inputs[names[0]].shape[0]
    if count < 2:
        return
    generator = torch.Generator().manual_seed(0)
    picks = {
        "the first row alone": torch.tensor([0]),
        "the last row alone": torch.tensor([count - 1]),
        "the first half": torch.arange(count // 2),
        "all but the first": torch.arange(1, count),
        "a permutation": torch.randperm(count, generator=generator),
        "a row repeated": torch.zeros(min(count, 7), dtype=torch.int64),
    }
    for label, pick in picks.items():
        chosen = {name: inputs[name].index_select(0, pick.to(inputs[name].device)) for name in names}
        outputs = trial.call({**clone(inputs), **chosen})
        expected = {
            name: value.index_select(0, pick.to(value.device)) if _follows(value, count) else value
            for name, value in tensors_of(full).items()
        }
        check_same(outputs, expected, findings, f"{label}: ")
    _other_neighbours(trial, inputs, full, findings)


def _other_neighbours(trial: Trial, inputs: dict[str, Any], full: dict[str, Any], findings: Findings) -> None:
    """All rows but the first and last get other data: those two keep their bits, and the others have their own."""
    names, count = trial.contract.rows, inputs[trial.contract.rows[0]].shape[0]
    other = trial.inputs(salt=2)
    if count < 3 or any(other[name].shape != inputs[name].shape for name in names):
        return
    given = clone(inputs)
    for name in names:
        given[name][1:-1] = other[name][1:-1]
    outputs = clone(trial.call(clone(given)))
    alone = trial.call({**clone(inputs), **{name: given[name][1:-1].clone() for name in names}})
    for name, value in tensors_of(outputs).items():
        if not _follows(value, count):
            continue
        kept = value[[0, -1]], full[name][[0, -1]]
        check_same({name: kept[0]}, {name: kept[1]}, findings, "rows between the first and the last changed: ")
        check_same({name: value[1:-1]}, {name: alone[name]}, findings, "changed rows beside others and alone: ")


def _follows(value: torch.Tensor, rows: int) -> bool:
    return value.dim() > 0 and value.shape[0] == rows


@contextmanager
def _jitter(trial: Trial) -> Iterator[None]:
    """On a GPU: copies and matrix products on a side stream, so that blocks are scheduled otherwise each time."""
    if trial.world.name != "cuda":
        yield
        return
    stream = torch.cuda.Stream()
    noise = torch.linspace(-1, 1, 2048 * 2048, device="cuda", dtype=torch.bfloat16).view(2048, 2048)
    with torch.cuda.stream(stream):
        for _ in range(20):
            noise = (noise @ noise).clamp_(-1, 1)
    try:
        yield
    finally:
        stream.synchronize()


def _two_streams(trial: Trial, inputs: dict[str, Any], expected: dict[str, Any], findings: Findings) -> None:
    """The same operation on two streams at once, with different data: they must not share a workspace."""
    other = trial.inputs(salt=1)
    alone = clone(trial.call(clone(other)))
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    mine, theirs = clone(inputs), clone(other)
    torch.cuda.synchronize()
    results: list[list[Any]] = [[], []]
    for _ in range(10):
        for stream, values, kept in zip(streams, (mine, theirs), results, strict=True):
            with torch.cuda.stream(stream):
                kept.append(trial.bound(values)())
    torch.cuda.synchronize()
    if trial.contract.reuses_output:
        findings.note("two streams: results live in one workspace by contract; only their last ones are compared")
    for kept, want, label in ((results[0], expected, "first"), (results[1], alone, "second")):
        for result in kept[-1:] if trial.contract.reuses_output else kept:
            check_same(trial.suite.named_outputs(result), want, findings, f"two streams at once, the {label}: ")


def _two_threads(trial: Trial, inputs: dict[str, Any], expected: dict[str, Any], findings: Findings) -> None:
    """The same operation in two host threads at once, with different data: they must not share a scratch buffer."""
    if trial.contract.reuses_output:
        findings.note("two threads: results live in one workspace by contract, so they are not compared")
        return
    other = trial.inputs(salt=1)
    work = ((inputs, expected, "first"), (other, clone(trial.call(clone(other))), "second"))
    start = threading.Barrier(len(work))
    lines: list[str] = []
    cores = torch.get_num_threads()

    def loop(values: dict[str, Any], want: dict[str, Any], label: str) -> None:
        torch.set_num_threads(cores)  # a thread's own default may split a reduction otherwise
        with torch.no_grad():
            start.wait()
            for _ in range(THREAD_CALLS):
                try:
                    got = tensors_of(trial.suite.named_outputs(trial.bound(clone(values))()))
                    wrong = [name for name, value in got.items() if not same_bits(value, want[name])]
                except Exception as error:
                    lines.append(f"the {label} raised {type(error).__name__}: {error}")
                    return
                if wrong:
                    lines.append(f"the {label} has other bits in {', '.join(wrong)}")
                    return

    threads = [threading.Thread(target=loop, args=arguments) for arguments in work]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    findings.check(not lines, f"two threads at once: {'; '.join(lines)}", "each thread's own result", "mixed data")
