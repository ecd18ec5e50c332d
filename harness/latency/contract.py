"""What two timings must have in common before they may be compared: the timing contract and its hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

DIGEST_SHOWN = 16
"""Hex digits of a digest that names and versions carry: 64 bits, far beyond any number of contracts."""


class ContractMismatch(ValueError):
    """Two timings were taken in different ways; the message names every field that differs."""


@dataclass(frozen=True)
class TimingContract:
    """How a duration was measured. Comparisons across different contracts are refused, never attempted.

    flashinfer#4468 shows the size of the mistake: one flag that silently meant warm operands in graph mode moved an
    NVFP4 matrix product by 36 %. The data regime is not here because it is part of every case id.
    """

    method: str
    """What the clock is: ``wall``, ``events-behind-backlog``, ``graph-replay``."""
    warmup_s: float
    """Seconds of calls before the first timed one. Time and not a count: triton#2306 was 30 % off from a count."""
    min_calls: int
    """Timed calls of one sample, at least."""
    min_time_s: float
    """Timed seconds of one sample, at least."""
    rotation_l2: float = 0.0
    """Operands are rotated over this many times the L2 cache, so that each call finds them cold; 0 means warm."""
    graph_calls: int = 0
    """Calls in one captured graph; 0 means that no graph is replayed."""
    backlog_s: float = 0.0
    """Device time queued in front of the timed calls, so that a slow host cannot be what is measured."""
    statistic: str = "median"
    """Over the timed calls of one process. A minimum picks the boost spike of a power-limited kernel."""
    clocks: str = "default"
    """Clock mode of the device: ``default`` (free to boost) or ``locked``."""
    threads: int = 0
    """Threads a CPU call may use; 0 where that means nothing."""
    revision: int = 1
    """Raised when the code that measures changes in a way that moves numbers."""

    def __post_init__(self) -> None:
        # 1 and 1.0 are one duration, and must not be two contracts
        for name in ("warmup_s", "min_time_s", "rotation_l2", "backlog_s"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def canonical(self) -> str:
        """The one JSON text of this contract: sorted keys, no spaces, shortest floats, NaN refused."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical text, in hex."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def version(self) -> str:
        """The digest as names and asv versions carry it."""
        return self.digest[:DIGEST_SHOWN]


def differences(a: TimingContract, b: TimingContract) -> tuple[str, ...]:
    """Fields in which two contracts differ, as ``warmup_s: 0.2 against 0.5``."""
    ours, theirs = asdict(a), asdict(b)
    return tuple(f"{name}: {ours[name]} against {theirs[name]}" for name in ours if ours[name] != theirs[name])


def require_same(a: TimingContract, b: TimingContract) -> None:
    """Raise ContractMismatch unless two timings were taken in the same way."""
    if a.digest != b.digest:
        raise ContractMismatch(
            "timings taken in different ways cannot be compared: "
            + "; ".join(differences(a, b))
            + "; measure one side again under the other's contract"
        )
