"""Hidden inputs: device buffers a call reads though nobody passed them to it.

A graph keeps addresses. A buffer that is made once and kept is fine while somebody keeps it; one that is replaced
between calls leaves the graph reading the old address; one that is made inside the captured call and kept for the
next lives in the graph's private pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from harness.fake_cuda.fake_mode import storage_key
from harness.fake_cuda.findings import Finding, Severity
from harness.fake_cuda.source_line import source_line


@dataclass
class HiddenInput:
    """A storage that a call read without having made or been given it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    op: str
    where: str
    born: int | None
    """The call that made it; None if it existed before all of them."""
    calls: set[int] = field(default_factory=set)


class Storages:
    """Follows the storages of the device over several calls."""

    def __init__(self, declared: Iterable[torch.Tensor]) -> None:
        # A storage is known by its address, so each one seen is kept until the end: fake ones have no bytes.
        self._kept: dict[int, torch.UntypedStorage] = {}
        self._declared: set[int] = set()
        self._born: dict[int, int] = {}
        self._hidden: dict[int, HiddenInput] = {}
        for tensor in declared:
            self._declared.add(self._keep(tensor))

    def read(self, tensor: torch.Tensor, op: str, call: int) -> None:
        """A device tensor is an operand of ``op``."""
        key = self._keep(tensor)
        born = self._born.get(key)
        if key in self._declared or born == call:
            return
        hidden = self._hidden.get(key)
        if hidden is None:
            hidden = HiddenInput(tuple(tensor.shape), tensor.dtype, op, source_line(), born)
            self._hidden[key] = hidden
        hidden.calls.add(call)

    def made(self, tensor: torch.Tensor, call: int) -> None:
        """A device tensor is a result (possibly a view of an operand)."""
        key = self._keep(tensor)
        if key not in self._declared and key not in self._hidden:
            self._born.setdefault(key, call)

    def findings(self, first: int, second: int) -> Iterable[Finding]:
        """Judges what the two captured calls (their numbers) read."""
        for hidden in self._hidden.values():
            seen = hidden.calls & {first, second}
            if not seen:
                continue
            buffer = f"{hidden.shape} {hidden.dtype}"
            if hidden.born is not None and hidden.born >= first:
                rule, severity = "cache-in-capture", Severity.HAZARD
                what = f"buffer {buffer} made inside the captured call is read by a later one ({hidden.op})"
            elif seen != {first, second}:
                rule, severity = "stale-pointer", Severity.HAZARD
                what = f"hidden input {buffer} is replaced between calls: a replay reads the old address ({hidden.op})"
            else:
                rule, severity = "hidden-input", Severity.NOTE
                what = f"hidden input {buffer} is read by address: keep it as long as the graph ({hidden.op})"
            yield Finding(rule, severity, what, hidden.where, second)

    def _keep(self, tensor: torch.Tensor) -> int:
        key = storage_key(tensor)
        if key not in self._kept:
            self._kept[key] = tensor.untyped_storage()
        return key
