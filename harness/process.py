"""The state of this process that outlives a trial.

A failed CUDA-graph capture leaves torch's default generator in its capturing state (seen with torch 2.11: every later
random number raises), and a CUDA error stays with a process for good. Such a process finishes its trial and serves
no other.
"""

from __future__ import annotations

_retired = False


def retire_process() -> None:
    """Say that this process should not run another trial."""
    global _retired
    _retired = True


def is_retired() -> bool:
    """Whether something has said so."""
    return _retired
