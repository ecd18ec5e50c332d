"""Compiled kernels on disk: `<digest>.so` with `<digest>.json`, the full key, beside it.

Folder: `$KERNEL_HARNESS_CACHE`, else `~/.cache/kernel-harness/cute`. `KERNEL_HARNESS_CACHE=off` turns it off, as
does a folder that cannot be written or a machine without a C compiler: kernels then compile in every process. A
shared object needs only apache-tvm-ffi and the DSL's runtime library to run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def _symbol(digest: str) -> str:
    """Exported name, unique: two libraries with equal names in one process resolve to the first (CUDA error 98)."""
    return f"kernel_{digest}"


_log = logging.getLogger(__name__)


def folder() -> Path | None:
    """The cache folder, created; None if the disk cache is off or unusable."""
    setting = os.environ.get("KERNEL_HARNESS_CACHE", "")
    if setting == "off":
        return None
    path = Path(setting) if setting else Path.home() / ".cache" / "kernel-harness" / "cute"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _log.warning("no disk cache for compiled kernels: %s", error)
        return None
    return path if os.access(path, os.W_OK) else None


@contextlib.contextmanager
def process_lock(digest: str) -> Iterator[None]:
    """Exclusive across processes for one kernel: the second process finds the binary of the first."""
    path = folder()
    if path is None:
        yield
        return
    with open(path / f"{digest}.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)


def load(digest: str, key: dict[str, Any]) -> Callable[..., None] | None:
    """The stored kernel, or None when there is none, its key differs, or it does not load."""
    path = folder()
    if path is None:
        return None
    library, record = path / f"{digest}.so", path / f"{digest}.json"
    try:
        if json.loads(record.read_text()) != key:
            return None
        from cutlass.cute.runtime import load_module

        module = load_module(str(library), enable_tvm_ffi=True)
        function: Callable[..., None] = getattr(module, _symbol(digest))
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file must cost a compile, not the process
        _log.warning("%s does not load, compiling again: %s", library, error)
        return None
    return function


def save(digest: str, key: dict[str, Any], function: Any) -> bool:
    """Export, link, and publish with two renames, the record last. False when the machine cannot do it."""
    path, gcc = folder(), shutil.which("gcc") or shutil.which("cc")
    if path is None or gcc is None:
        return False
    from cutlass.cute.runtime import find_runtime_libraries

    with tempfile.TemporaryDirectory(dir=path, prefix=".tmp-") as scratch:
        objects, library = Path(scratch) / "k.o", Path(scratch) / "k.so"
        try:
            function.export_to_c(str(objects), function_name=_symbol(digest))
            libraries = list(find_runtime_libraries(enable_tvm_ffi=True))
            rpath = [f"-Wl,-rpath,{Path(p).parent}" for p in libraries]
            subprocess.run(
                [gcc, "-shared", "-Wl,-Bsymbolic", "-o", str(library), str(objects), *libraries, *rpath],
                check=True,
                capture_output=True,
            )
        except (subprocess.CalledProcessError, OSError, RuntimeError) as error:
            detail = getattr(error, "stderr", b"") or str(error)
            _log.warning("kernel %s not stored: %s", key.get("kernel"), detail)
            return False
        record = Path(scratch) / "k.json"
        record.write_text(json.dumps(key, sort_keys=True, indent=1))
        os.replace(library, path / f"{digest}.so")
        os.replace(record, path / f"{digest}.json")
    return True
