"""A clock that only measured time advances."""

from __future__ import annotations


class VirtualClock:
    """asv reads its ``timer`` before and after a call, and takes the difference for the duration of the call.

    On a GPU that difference would be the host's launch time, or, after a wait for the device, launch and queueing
    added to the kernel. So the timer asv is given stands still, and the benchmark moves it on by the seconds it has
    measured in its own way. asv then keeps samples, intervals and history of those, with nothing replaced in asv.
    """

    def __init__(self) -> None:
        self._seconds = 0.0

    def now(self) -> float:
        """Seconds measured so far."""
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Add a measured duration; ValueError for one that no call can take."""
        if not 0.0 < seconds < float("inf"):
            raise ValueError(f"a measured duration must be positive and finite, got {seconds!r} s")
        self._seconds += seconds
