"""Runs a function under observation, call by call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from harness.compile_watch import watch_compiles
from harness.fake_cuda.composite import is_composite
from harness.fake_cuda.device import FakeDevice
from harness.fake_cuda.findings import Finding, Severity
from harness.fake_cuda.host_work import watch_host_work
from harness.fake_cuda.lint_modes import MethodMode, OperatorMode
from harness.fake_cuda.look_into import first_line, is_a_launch, kernel_to_look_into, look_into
from harness.fake_cuda.op_call import Hit, OpCall, on_cpu, on_cuda
from harness.fake_cuda.rules import RULES
from harness.fake_cuda.source_line import raising_line, source_line
from harness.fake_cuda.storages import Storages
from harness.fake_cuda.trace import Step, compare, step
from harness.fake_cuda.triton_launches import cold_kernel

_FOLLOWS_A_BREAK = (GuardOnDataDependentSymNode, DynamicOutputShapeException, DataDependentOutputException)
"""Exceptions by which a fake tensor refuses what a real one answers after a host read."""


@dataclass
class WatchedCall:
    """What one call did."""

    number: int
    captured: bool
    steps: list[Step] = field(default_factory=list)
    device_ops: int = 0
    result: Any = None
    raised: bool = False


class Watcher:
    """Observes calls of one function and keeps what they have in common: findings, storages, compiled kernels."""

    def __init__(
        self, device: FakeDevice, declared: list[torch.Tensor], generators: Iterable[torch._C.Generator]
    ) -> None:
        self.findings: list[Finding] = []
        self._device = device
        self._mode: FakeTensorMode = device.mode
        self._storages = Storages(tensor for tensor in declared if on_cuda(tensor))
        self._generators = tuple(generators)
        self._methods = MethodMode(self._tell)
        self._compiled: set[Any] = set()
        self._left: dict[str, str] = {}  # operators whose kernel was left where it launches, and why
        self._now = WatchedCall(0, captured=False)

    # -- one call

    def call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, captured: bool
    ) -> WatchedCall:
        """Run ``fn`` once. What it raises becomes a finding."""
        self._now = call = WatchedCall(self._now.number + 1, captured)
        with self._observing(captured):
            try:
                call.result = fn(*args, **kwargs)
            except Exception as error:
                call.raised = True
                self._raised(error)
        return call

    @contextmanager
    def _observing(self, captured: bool) -> Iterator[None]:
        streams, device = self._device.streams, self._device
        current = streams.current
        with ExitStack() as stack:
            stack.callback(setattr, device, "listener", device.listener)
            stack.callback(setattr, streams, "current", current)
            device.listener = self
            stack.enter_context(_quiet())
            if captured:
                stack.callback(self._end_capture)
                streams.begin_capture()
                compiles = stack.enter_context(watch_compiles())
                stack.callback(self._report_compiles, compiles)
                stack.enter_context(watch_host_work(self._tell))
            stack.enter_context(self._methods)
            stack.enter_context(OperatorMode(self._operator))
            yield

    def _end_capture(self) -> None:
        for stream in self._device.streams.end_capture():
            what = f"stream {stream} was forked from the capture and not joined back"
            self.hit("unjoined-stream", Severity.BREAK, what)

    def _report_compiles(self, compiles: list[str]) -> None:
        for line in compiles:
            if not line.startswith("program:"):  # those are seen by watch_host_work, with their line
                self.hit("jit-in-capture", Severity.BREAK, f"{line} is compiled inside the captured call")

    def _raised(self, error: Exception) -> None:
        what = first_line(error)
        broken = any(
            finding.severity is Severity.BREAK and finding.call == self._now.number for finding in self.findings
        )
        where = raising_line(error)
        if isinstance(error, _FOLLOWS_A_BREAK):
            self.hit(
                "host-sync",
                Severity.BREAK,
                f"Python depends on a device value or a data-dependent size: {what}",
                where,
            )
        elif isinstance(error, UnsupportedOperatorException):
            pass  # reported where it was raised
        elif is_a_launch(error):
            advice = "wrap it in a custom operator with a fake (torch.library.custom_op, register_fake)"
            self.hit("launch-not-followed", Severity.ERROR, f"launches compiled code ({what}); {advice}", where)
        else:
            severity = Severity.NOTE if broken else Severity.ERROR
            self.hit("raised", severity, what, where)

    # -- one operator

    def _operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if is_composite(func):
            with OperatorMode(self._operator):
                return func.decompose(*args, **kwargs)
        registered = any(self._methods.generator is generator for generator in self._generators)
        call = OpCall.of(func, args, kwargs, self._device.mode.pinned, registered)
        for rule in RULES:
            for hit in rule(call):
                self._tell(hit)
        kernel = kernel_to_look_into(func, "cuda") if call.on_device and call.name not in self._left else None
        if kernel is not None:
            return self._look_into(call, kernel)
        return self._run(call)

    def _look_into(self, call: OpCall, kernel: Callable[..., Any]) -> Any:
        """Follow the kernel of a custom operator; one that was left once is not entered again."""

        def inside() -> Any:
            with self._methods, OperatorMode(self._operator):
                return kernel(*call.args, **call.kwargs)

        result, reason = look_into(inside, lambda: self._run(call))
        if reason is not None:
            self._left[call.name] = reason
        return result

    def _run(self, call: OpCall) -> Any:
        """Run one operator whose parts are not seen."""
        if call.name in self._left:
            what = f"{call.name} launches compiled code, which is not seen ({self._left[call.name]})"
            self.hit("opaque", Severity.NOTE, what)
        for tensor in call.tensors:
            if on_cuda(tensor):
                self._storages.read(tensor, call.name, self._now.number)
        if call.on_device and _is_launch(call.func):
            self._launch(call.name)
        try:
            result = call.func(*call.args, **call.kwargs)
        except UnsupportedOperatorException as error:  # reported here: the function may catch it
            what = f"{error}: give the operator a fake with torch.library.register_fake"
            self.hit("no-fake", Severity.ERROR, what)
            raise
        for leaf in tree_leaves(result):
            if on_cuda(leaf):
                self._storages.made(leaf, self._now.number)
        self._now.steps.append(step(call.name, call.leaves, source_line()))
        return result

    def _launch(self, name: str) -> None:
        """Work reaches the current stream."""
        self._now.device_ops += 1
        streams = self._device.streams
        if streams.capture is None:
            return
        if streams.capture.holds(streams.current):
            streams.capture.launch(streams.current)
        else:
            which = "the default stream" if streams.current == streams.default else "a stream"
            what = f"{name} on {which}, which has not joined the capture: it runs now and is not in the graph"
            self.hit("not-captured", Severity.HAZARD, what)

    # -- what others report

    def hit(self, rule: str, severity: Severity, what: str, where: str | None = None) -> None:
        finding = Finding(rule, severity, what, where or source_line(), self._now.number)
        if finding not in self.findings:
            self.findings.append(finding)

    def _tell(self, hit: Hit) -> None:
        self.hit(*hit)

    def launched(self, kernel: str, arguments: tuple[Any, ...], specialisation: Any) -> None:
        """A kernel outside torch (Triton) is launched, or would be."""
        for leaf in arguments:
            if on_cuda(leaf):
                self._storages.read(leaf, kernel, self._now.number)
            elif on_cpu(leaf):
                self.hit("host-pointer", Severity.BREAK, f"CPU tensor {tuple(leaf.shape)} given to {kernel}")
        if specialisation not in self._compiled:
            self._compiled.add(specialisation)
            if self._now.captured:
                self._tell(cold_kernel(kernel))
        self._launch(kernel)
        self._now.steps.append(step(kernel, arguments, source_line()))

    # -- several calls

    def compared(self, first: WatchedCall, second: WatchedCall) -> list[Finding]:
        """Findings that need both captured calls."""
        found = list(self._storages.findings(first.number, second.number))
        if not (first.raised or second.raised):
            found += compare(first.steps, second.steps, second.number)
        return found


def _is_launch(func: Any) -> bool:
    """Views and plain allocations put nothing on the device."""
    if func.is_view or func.namespace == "prims":
        return False
    return func._schema.name not in _NO_KERNEL


_NO_KERNEL = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted", "detach",
        "lift_fresh", "set_", "resize_", "record_stream", "is_pinned", "_reshape_alias", "_unsafe_view", "equal",
        "_local_scalar_dense", "is_same_size", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset",
    )
)  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """torch logs what a fake operator raises, before the function under test may catch it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled
