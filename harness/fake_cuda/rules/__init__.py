"""What breaks or poisons a capture, one idea a file.

A rule is a function of one operator call that yields findings. Rules look at the call alone; what needs more than one
call to see (buffers replaced, constants that change, streams not joined) is in ``harness.fake_cuda.calls_compared``.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.fake_cuda.op_call import Hits, OpCall
from harness.fake_cuda.rules.copies import copies
from harness.fake_cuda.rules.host_reads import host_reads
from harness.fake_cuda.rules.indexing import indexing
from harness.fake_cuda.rules.operators import declared_unsafe, not_looked_into
from harness.fake_cuda.rules.randomness import randomness

RULES: tuple[Callable[[OpCall], Hits], ...] = (
    copies,
    indexing,
    host_reads,
    randomness,
    declared_unsafe,
    not_looked_into,
)
