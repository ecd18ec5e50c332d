"""Compiled kernels by explicit key: process memory first, then the disk, then one compile under a lock.

* `cute.compile` always compiles again, and two compiles at once in one process abort it (DSL 4.8.1: SIGABRT in
  nanobind). So every compile goes through one lock, and callers find theirs done when they get it.
* A compile or a module load inside a CUDA-graph capture would break or poison the capture: it is refused by name.
  Warm up eagerly instead.
* The key holds everything the code depends on: kernel name, compile-time parameters, architecture, DSL version and a
  fingerprint of the sources. An edited source never finds an old binary.
* A second process loads the shared object of the first: no tracing, no compiling, bytes equal to those measured.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.jit import compiler, store


class CompileDuringCaptureError(RuntimeError):
    """A kernel would have to be compiled or loaded while a CUDA graph is being captured."""


@functools.cache
def source_fingerprint(package: str) -> str:
    """SHA-256 over names and bytes of the Python files of a package folder; read once a process."""
    digest = hashlib.sha256()
    for path in sorted(Path(package).glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class KernelSpec:
    """What to compile. Two specs with equal `key()` are the same binary; keep one object a kernel, `get` is fastest
    so.
    """

    name: str
    params: tuple[tuple[str, str], ...]
    """Compile-time parameters as (name, value) text: tile shape, dtypes, options."""
    package: str
    """Folder whose sources the kernel is traced from."""
    build: Callable[[], tuple[Any, tuple[Any, ...]]]
    """-> (object for `cute.compile`, its fake arguments). Runs only when a compile is needed."""
    arch: str = "sm_90a"

    def key(self) -> dict[str, Any]:
        return {
            "kernel": self.name,
            "params": dict(self.params),
            "arch": self.arch,
            "dsl": compiler.dsl_version(),
            "sources": source_fingerprint(self.package),
        }

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.key(), sort_keys=True).encode()).hexdigest()[:24]


_lock = threading.RLock()
_fast: dict[KernelSpec, Callable[..., None]] = {}  # by identity: a lookup of 0.1 us
_memory: dict[tuple[str, tuple[tuple[str, str], ...], str], Callable[..., None]] = {}
_compiles = 0
_disk_loads = 0


def compile_count() -> int:
    """Kernels compiled by this process so far."""
    return _compiles


def disk_load_count() -> int:
    """Kernels this process loaded from the disk cache instead of compiling them."""
    return _disk_loads


def clear_memory() -> None:
    """Forget the kernels held in memory (their modules stay loaded). For tests."""
    with _lock:
        _fast.clear()
        _memory.clear()


def get(spec: KernelSpec) -> Callable[..., None]:
    """The compiled kernel of `spec`; torch tensors and Python scalars as positional arguments, current torch
    stream.
    """
    found = _fast.get(spec)
    return found if found is not None else _get_slow(spec)


def _get_slow(spec: KernelSpec) -> Callable[..., None]:
    global _compiles, _disk_loads
    slot = (spec.name, spec.params, spec.arch)
    with _lock:
        function = _memory.get(slot)
        if function is None:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise CompileDuringCaptureError(
                    f"kernel {spec.name!r} {dict(spec.params)} is not compiled yet, and a CUDA graph is being "
                    "captured. Call the warm-up (kernels.sm90.warmup_compilation) or the operation itself once before."
                )
            digest = spec.digest()
            with store.process_lock(digest):
                function = store.load(digest, spec.key())
                if function is not None:
                    _disk_loads += 1
                else:
                    function = compiler.compile_spec(spec)
                    _compiles += 1
                    store.save(digest, spec.key(), function)
            _memory[slot] = function
        _fast[spec] = function
        return function
