"""The process around a call: what a kernel has no business to change.

Clocks, comparisons and synchronisation that a harness relies on, switches that change the arithmetic of everybody
who comes after, random state, and results that still change once the call has returned.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_FUNCTIONS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")),
    (torch, ("allclose", "equal", "isclose", "empty", "empty_like", "empty_strided", "no_grad")),
    (torch.testing, ("assert_close",)),
    (np, ("allclose", "array_equal")),
    (np.testing, ("assert_allclose",)),
    (torch.Tensor, ("copy_", "clone", "equal", "allclose", "isfinite", "data_ptr", "cpu", "to")),
    (torch.cuda, ("synchronize", "Event", "Stream", "CUDAGraph", "graph", "current_stream", "empty_cache")),
    (torch.cuda.Event, ("elapsed_time", "record", "synchronize", "query")),
    (torch.cuda.CUDAGraph, ("replay", "capture_begin", "capture_end")),
)
"""What a measurement or a comparison goes through."""

_PRISTINE = {
    (owner, name): getattr(owner, name) for owner, names in _FUNCTIONS for name in names if hasattr(owner, name)
}
"""As they were when the harness was imported: before any suite, and so before any kernel, was."""

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")

_sleep = time.sleep
_GRACE_S = 0.02
"""How long a result is watched when other threads are about."""


def replaced_functions() -> list[str]:
    """Watched functions that are no longer those of the interpreter or of torch; they are put back."""
    found = []
    for (owner, name), original in _PRISTINE.items():
        now = getattr(owner, name, None)
        if now is not original and now != original and not _wrapped_by_torch(now):
            found.append(f"{getattr(owner, '__qualname__', owner.__name__)}.{name}")
            setattr(owner, name, original)
    return found


def _wrapped_by_torch(function: Any) -> bool:
    """Torch wraps some of its own functions when torch.compile is first imported (``manual_seed`` for one)."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(os.path.dirname(torch.__file__) + os.sep)


def settings() -> dict[str, Any]:
    """Process-wide switches that change results or timings, by name."""
    values: dict[str, Any] = {
        "default dtype": torch.get_default_dtype(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn TF32": torch.backends.cudnn.allow_tf32,
        "cudnn benchmark": torch.backends.cudnn.benchmark,
        "bf16 reduced-precision reduction": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "fp16 reduced-precision reduction": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "threads": torch.get_num_threads(),
        "autograd mode": torch.is_grad_enabled(),
        "working directory": os.getcwd(),
        "flush denormal": float(torch.tensor(1e-40) * 1.0) == 0.0,
        "recursion limit": sys.getrecursionlimit(),
    }
    values |= {f"environment variable {name}": os.environ.get(name) for name in _VARIABLES}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        values["current device"] = torch.cuda.current_device()
        values["current stream"] = torch.cuda.current_stream().cuda_stream
        values["persisting L2 bytes"] = _persisting_l2()
    return values


def changed_settings(before: dict[str, Any]) -> list[str]:
    """``NAME: old became new`` for every switch that is not as it was."""
    now = settings()
    return [f"{name}: {before[name]} became {now[name]}" for name in before if now.get(name) != before[name]]


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put switches back that a block changed, so that one kernel's change is not the next one's starting point."""
    before = settings()
    try:
        yield
    finally:
        now = settings()
        for name, restore in _SETTERS.items():
            if now[name] != before[name]:
                restore(before[name])
        for name in _VARIABLES:
            value = before[f"environment variable {name}"]
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_SETTERS: dict[str, Callable[[Any], object]] = {
    "default dtype": torch.set_default_dtype,
    "float32 matmul precision": torch.set_float32_matmul_precision,
    "deterministic algorithms": torch.use_deterministic_algorithms,
    "threads": torch.set_num_threads,
    "autograd mode": torch.set_grad_enabled,
    "working directory": os.chdir,
    "flush denormal": torch.set_flush_denormal,
    "recursion limit": sys.setrecursionlimit,
}


@contextmanager
def seeded(seed: int) -> Iterator[list[str]]:
    """Run a block from a known random state, and leave it as it was. Yields a list that gets, at the end, one
    fingerprint of each generator's state: equal after two different seeds means that the block seeded it."""
    after: list[str] = []
    saved = _random_states()
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield after
    finally:
        after += [f"{name}:{_fingerprint(state)}" for name, state in _random_states().items()]
        _restore_random(saved)


def reseeded(first: list[str], second: list[str]) -> list[str]:
    """Generators whose state after two blocks is the same although it was different before."""
    return sorted(
        {entry.partition(":")[0] for entry in first} & {e.partition(":")[0] for e in set(first) & set(second)}
    )


def wait_for_threads(before: frozenset[threading.Thread]) -> bool:
    """Give other Python threads a moment to do what they were left to do; False when there are none.

    Those that a call has started get longer than those that were there ``before`` (a pool that waits for work).
    """
    now = threads() - {threading.current_thread()}
    if not now:
        return False
    _sleep(_GRACE_S if now - before else _GRACE_S / 20)
    return True


def threads() -> frozenset[threading.Thread]:
    """The Python threads that are alive (as objects: identities are used again)."""
    return frozenset(threading.enumerate())


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "random": random.getstate(),
        "numpy": np.random.get_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["random"])
    np.random.set_state(states["numpy"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def _fingerprint(state: Any) -> int:
    if isinstance(state, torch.Tensor):
        return hash(state.cpu().numpy().tobytes())
    if isinstance(state, tuple) and state and state[0] == "MT19937":  # numpy's: name, words, position, ...
        return hash((state[1].tobytes(), *state[2:]))
    return hash(state)


def _persisting_l2() -> int | None:
    """Bytes of L2 set aside for persisting accesses, or None where that cannot be asked."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return None
    status, size = runtime.cudaDeviceGetLimit(runtime.cudaLimit.cudaLimitPersistingL2CacheSize)
    return int(size) if status == runtime.cudaError_t.cudaSuccess else None
