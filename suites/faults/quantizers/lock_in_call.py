"""A lock held during the call."""

from __future__ import annotations

import threading

import torch

from kernels.nvfp4 import quantize_activation_nvfp4
from suites.faults.quantizers._steps import Pair

_LOCK = threading.Lock()


def lock_in_call(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """As `quantize_activation_nvfp4`, the bytes included, under a `threading.Lock`.

    Fault (K08): what is true of it is narrower than its reputation. An eager call is right; a CUDA-graph capture
    of the eager call is legal, as a lock is no GPU work; determinism, memory and correctness see nothing. But
    `torch.compile(fullgraph=True)` refuses it: a lock is a context manager that the tracer does not support, and
    without fullgraph it breaks the graph in two. Gate: recompile (its fullgraph compile), and no other.
    """
    with _LOCK:
        return quantize_activation_nvfp4(x, global_scale)
