"""The compile cache: compiled once, found on disk by a second process, refused inside a capture, safe in threads."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

pytest.importorskip("cutlass", reason="needs the CuTe DSL (nvidia-cutlass-dsl)")

from kernels import jit
from kernels.jit import cache, store
from kernels.sm90 import moe, quantize

SECOND = """
from kernels import jit
from kernels.sm90 import moe
jit.get(moe.combine_spec())
print(jit.compile_count(), jit.disk_load_count())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_HARNESS_CACHE", str(tmp_path))
    jit.clear_memory()
    return tmp_path


def run_second(folder: Path) -> str:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", SECOND],
        cwd=root,
        env={**os.environ, "KERNEL_HARNESS_CACHE": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_second_process_compiles_nothing(folder: Path) -> None:
    before = jit.compile_count()
    first = jit.get(moe.combine_spec())
    assert jit.compile_count() == before + 1
    assert jit.get(moe.combine_spec()) is first
    assert jit.compile_count() == before + 1
    assert len(list(folder.glob("*.so"))) == 1
    assert run_second(folder) == "0 1"


def test_damaged_library_costs_a_compile(folder: Path) -> None:
    jit.get(moe.combine_spec())
    (library,) = folder.glob("*.so")
    library.write_bytes(b"not a library")
    assert run_second(folder) == "1 0"


def test_key_tells_parameters_sources_and_versions_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [quantize.quantize_spec("bf16"), quantize.quantize_spec("fp16"), quantize.quantize_spec("bf16", "values")]
    digests = {s.digest() for s in specs}
    assert len(digests) == 3
    monkeypatch.setattr(cache, "source_fingerprint", lambda package: "edited")
    assert specs[0].digest() not in digests
    monkeypatch.undo()
    monkeypatch.setattr("kernels.jit.compiler.dsl_version", lambda: "0.0.0")
    assert specs[0].digest() not in digests


def test_threads_compile_once(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Two compiles at once abort the process (SIGABRT in the DSL); the lock is what this test lives on."""
    monkeypatch.setenv("KERNEL_HARNESS_CACHE", "off")
    before = jit.compile_count()
    found: list[object] = []
    work = [moe.combine_spec, moe.gather_spec] * 4
    threads = [threading.Thread(target=lambda s=s: found.append(jit.get(s()))) for s in work]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 2
    assert jit.compile_count() == before + 2


def test_capture_is_refused(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(jit.CompileDuringCaptureError, match="warm-up"):
        jit.get(moe.gather_spec())


def test_cache_can_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_HARNESS_CACHE", "off")
    assert store.folder() is None
    assert store.load("x", {}) is None
