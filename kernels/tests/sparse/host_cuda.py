"""Run the CUDA source on the CPU: the very .cu file, compiled as C++ with a dozen stand-ins for CUDA's built-ins.

Every block runs in turn; the threads of a block are real threads, for a barrier needs them. It is slow, and it proves
nothing about a GPU's memory model, but every index, branch and argument of the kernels is the real one.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from kernels.sparse import ops
from kernels.sparse.nvrtc import KERNEL_NAMES, SOURCE, SparseKernels

THREADS = 4  # a block; the kernels must be right for any number

PRELUDE = """
#include <barrier>
#include <thread>
#include <vector>
#include <atomic>
struct dim { unsigned x; };
struct alignas(16) int4 { int x, y, z, w; };
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static thread_local dim threadIdx, blockIdx;
static dim blockDim;
static std::barrier<>* barrier_;
static void __syncthreads() { barrier_->arrive_and_wait(); }
static int atomicAdd(int* p, int v) { return std::atomic_ref<int>(*p).fetch_add(v); }
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
template <typename F> static void run(long long blocks, long long threads, F body) {
  blockDim.x = threads;
  for (long long b = 0; b < blocks; ++b) {
    std::barrier<> all(threads);
    barrier_ = &all;
    std::vector<std::thread> pool;
    for (long long t = 0; t < threads; ++t)
      pool.emplace_back([=] { blockIdx.x = b; threadIdx.x = t; body(); });
    for (auto& one : pool) one.join();
  }
}
"""

# Argument counts of the kernels, in KERNEL_NAMES' order; casts are by the compiler, from 64-bit integers.
TAIL = """
struct Arg {
  long long v;
  template <typename T> operator T*() const { return (T*)v; }
  operator long long() const { return v; }
};
"""


def _entry(name: str, count: int) -> str:
    arguments = ", ".join(f"Arg{{a[{i}]}}" for i in range(count))
    return (
        f'extern "C" void host_{name}(long long blocks, long long threads, const long long* a) '
        f"{{ run(blocks, threads, [=] {{ {name}({arguments}); }}); }}\n"
    )


ARGUMENT_COUNTS = {"c128a_topk_metadata": 23, "c4a_global_topk": 16}


@cache
def library() -> ctypes.CDLL | None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="host_cuda_"))
    text = PRELUDE + SOURCE.read_text() + TAIL + "".join(_entry(n, ARGUMENT_COUNTS[n]) for n in KERNEL_NAMES)
    (folder / "host.cpp").write_text(text)
    command = [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-Wno-unknown-pragmas"]
    # A misaligned 16-byte store, which a GPU refuses and a CPU forgives, ends the process.
    command += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
    subprocess.run([*command, str(folder / "host.cpp"), "-o", str(folder / "host.so")], check=True)
    return ctypes.CDLL(str(folder / "host.so"))


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the launches of the "cuda" implementation to the host build, and let it accept CPU tensors."""
    found = library()
    if found is None:
        pytest.skip("needs g++ or clang++ to build the CUDA source for the host")

    def launch(kernel: str, device: object, blocks: int, threads: int, *arguments: int) -> None:
        assert len(arguments) == ARGUMENT_COUNTS[kernel]
        values = (ctypes.c_longlong * len(arguments))(*arguments)
        getattr(found, f"host_{kernel}")(ctypes.c_longlong(blocks), ctypes.c_longlong(threads), values)

    monkeypatch.setattr(ops.nvrtc, "launch", launch)
    monkeypatch.setattr(ops.nvrtc, "kernels_for", lambda device: SparseKernels(*KERNEL_NAMES))
    monkeypatch.setattr(ops, "C128A_THREADS", THREADS)
    monkeypatch.setattr(ops, "C4A_MAX_THREADS", THREADS)
    monkeypatch.setattr(ops, "c4a_threads", lambda width: THREADS)
    chosen = lambda implementation, device: implementation or "cuda"  # noqa: E731
    monkeypatch.setattr("kernels.sparse.c128a.select_implementation", chosen)
    monkeypatch.setattr("kernels.sparse.c4a.select_implementation", chosen)
