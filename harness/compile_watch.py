"""Counts compiles: what was compiled, by whom, while a block ran.

Watches torch.compile (Dynamo), Triton, CuTe DSL, NVRTC through cuda-core, and compilers started as programs. A
compile inside a call means a first request that takes seconds, a capture that fails, or a cache that misses a key.
Code with a compiler of its own reports it without importing anything of this project:
``sys.audit("gpu.compile", "what was compiled")``.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_COMPILER = re.compile(r"(.*-)?(nvcc|ptxas|nvvm|cicc|gcc|g\+\+|cc|c\+\+|clang|clang\+\+|cc1plus|fatbinary)(-[\d.]+)?")
"""A compiler's file name, also as ``x86_64-linux-gnu-gcc-12``."""

_SHELLS = {"sh", "bash", "dash"}

_listeners: list[Callable[[str], None]] = []
_hooked = False


@contextmanager
def watch_compiles() -> Iterator[list[str]]:
    """Yields a list that grows by one line for every compile in the block, e.g. ``"triton: quantize_kernel"``."""
    events: list[str] = []
    with ExitStack() as stack:
        for watcher in (_watch_dynamo, _watch_triton, _watch_cute, _watch_nvrtc, _watch_programs):
            stack.enter_context(watcher(events.append))
        yield events


@contextmanager
def _watch_dynamo(tell: Callable[[str], None]) -> Iterator[None]:
    """Dynamo counts its frames; the difference is the number of (re)compiles."""

    def compiled() -> int:
        utils = sys.modules.get("torch._dynamo.utils")
        return int(utils.counters["frames"]["ok"]) if utils is not None else 0

    before = compiled()
    try:
        yield
    finally:
        for _ in range(compiled() - before):
            tell("torch.compile: a frame")


@contextmanager
def _watch_triton(tell: Callable[[str], None]) -> Iterator[None]:
    module = sys.modules.get("triton.compiler.compiler")
    if module is None:
        yield
        return
    original = module.compile

    @functools.wraps(original)
    def compile(src: Any, *args: Any, **kwargs: Any) -> Any:
        tell(f"triton: {getattr(src, 'name', src)}")
        return original(src, *args, **kwargs)

    with _patched(module, "compile", compile), _patched(sys.modules.get("triton.runtime.jit"), "compile", compile):
        with _patched(sys.modules.get("triton.compiler"), "compile", compile):
            yield


@contextmanager
def _watch_cute(tell: Callable[[str], None]) -> Iterator[None]:
    """Every ``cute.compile(...)`` and every implicit call of a ``@cute.jit`` function goes through one class."""
    module = sys.modules.get("cutlass.base_dsl.compiler")
    owner = getattr(module, "CompileCallable", None)
    if owner is None:
        yield
        return
    original = owner.__call__

    @functools.wraps(original)
    def call(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        tell(f"cute.compile: {getattr(func, '__name__', type(func).__name__)}")
        return original(self, func, *args, **kwargs)

    with _patched(owner, "__call__", call):
        yield


@contextmanager
def _watch_nvrtc(tell: Callable[[str], None]) -> Iterator[None]:
    """cuda-core's ``Program`` is an extension type that cannot be patched, so the name by which it is made is."""
    module = sys.modules.get("cuda.core") or sys.modules.get("cuda.core.experimental")
    original = getattr(module, "Program", None)
    if original is None:
        yield
        return

    @functools.wraps(original, updated=())
    def program(*args: Any, **kwargs: Any) -> Any:
        tell("nvrtc: a program")
        return original(*args, **kwargs)

    with _patched(module, "Program", program):
        yield


@contextmanager
def _watch_programs(tell: Callable[[str], None]) -> Iterator[None]:
    """nvcc, ptxas, gcc and so on, started as child processes (an audit hook cannot be removed, only disarmed)."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True

    _listeners.append(tell)
    try:
        yield
    finally:
        _listeners.remove(tell)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _listeners:
        return
    if event == "gpu.compile":
        line = str(args[0])
    elif event in {"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"}:
        compilers = [name for name in _programs(args) if _COMPILER.fullmatch(name)]
        if not compilers:
            return
        line = f"program: {compilers[0]}"
    else:
        return
    for tell in _listeners:
        tell(line)


def _programs(args: tuple[Any, ...]) -> list[str]:
    """File names of what is started; of a shell's command line (``os.system`` has nothing else) every word."""
    words = [word for word in (args[0], *_list(args[1] if len(args) > 1 else ())) if isinstance(word, (str, bytes))]
    names = [os.path.basename(os.fsdecode(word)) for word in words]
    if len(args) > 1 and not _SHELLS & set(names[:2]):
        return names[:2]
    return [os.path.basename(part) for word in words for part in os.fsdecode(word).split()]


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


@contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    if owner is None or not hasattr(owner, name):
        yield
        return
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
