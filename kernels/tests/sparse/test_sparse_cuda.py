"""Compiling without a GPU; and on one: capture, replay, streams, and no compile after the first call."""

from __future__ import annotations

import contextlib
import re
from types import SimpleNamespace

import pytest
import torch

from kernels.sparse import (
    BOUNDS,
    build_c128a_topk_metadata,
    compile_cubin,
    compute_c4a_global_topk,
    nvrtc,
    warmup_sparse_kernels,
)


def require_nvrtc() -> None:
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="needs cuda-core")
    try:
        pathfinder.load_nvidia_dynamic_lib("nvrtc")
    except Exception as error:
        pytest.skip(f"needs libnvrtc (pip install nvidia-cuda-nvrtc): {error}")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_compiles_without_a_gpu(arch: str) -> None:
    require_nvrtc()
    cubin = compile_cubin(arch)
    assert cubin[:4] == b"\x7fELF"
    assert all(name.encode() in cubin for name in nvrtc.KERNEL_NAMES)
    assert compile_cubin(arch) is cubin


def test_kernel_signatures_take_only_64_bit_arguments() -> None:
    """Every argument is passed as a 64-bit integer, so a 32-bit parameter would read the wrong bytes."""
    for found in re.findall(r'extern "C" __global__ void \w+\(([^)]*)\)', nvrtc.SOURCE.read_text()):
        for parameter in found.split(","):
            assert re.match(r"\s*(const )?(long long|int\*|long long\*|unsigned char\*)\s", parameter), parameter


def test_first_use_inside_a_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="warmup_sparse_kernels"):
        nvrtc.kernels_for(torch.device("cuda", 63))


def test_launches_go_to_the_current_stream_of_the_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to that of the current device: a second GPU's buffers would stay as they were."""
    core = pytest.importorskip("cuda.core", reason="needs cuda-core")
    seen: list[object] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext(seen.append(device)))
    stream = lambda device: SimpleNamespace(cuda_stream=1000 + device.index)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(core, "launch", lambda *arguments: seen.append(arguments))
    nvrtc.launch("kernel", torch.device("cuda", 3), 5, 64, 1, 2)
    assert seen[0] == torch.device("cuda", 3)
    where, config, kernel, *values = seen[1]
    assert where.__cuda_stream__() == (0, 1003)
    assert (config.grid, config.block) == ((5, 1, 1), (64, 1, 1))
    assert (kernel, values) == ("kernel", [1, 2])


def test_a_grid_past_the_limit_is_an_error_and_not_a_lost_launch() -> None:
    with pytest.raises(ValueError, match="split the batch"):
        nvrtc.launch("kernel", torch.device("cuda", 0), 2**31, 64)


def test_warmup_wants_a_cuda_device() -> None:
    with pytest.raises(ValueError, match="expected a CUDA device"):
        warmup_sparse_kernels("cpu")


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
def test_captured_and_replayed_with_other_lengths_tables_and_slots() -> None:
    warmup_sparse_kernels()
    generator = torch.Generator("cuda").manual_seed(0)
    tokens, decode, width = 257, 100, 1024
    positions = torch.randint(0, 131072, (tokens,), device="cuda", generator=generator)
    requests = torch.arange(tokens, device="cuda", dtype=torch.int32) % 64
    table = torch.randint(0, 1 << 20, (64, 515), device="cuda", dtype=torch.int32, generator=generator)[:, :512]
    slots = torch.randint(-1, 9, (tokens,), device="cuda", generator=generator)
    topk = torch.randint(-1, 512 * 64, (decode, 511), device="cuda", dtype=torch.int32, generator=generator)
    buffers = [torch.full((tokens, width), -99, dtype=torch.int32, device="cuda") for _ in range(2)]
    lens = torch.full((tokens,), -99, dtype=torch.int32, device="cuda")

    def step(implementation: str) -> tuple[torch.Tensor, ...]:
        first = build_c128a_topk_metadata(
            positions, 128, decode, requests, table, 2, slots, buffers[0], lens, buffers[1], options=BOUNDS,
            implementation=implementation,
        )  # fmt: skip
        second = compute_c4a_global_topk(
            topk, requests[:decode], table, 64, slots[:decode] >= 0, options=BOUNDS, implementation=implementation
        )
        return (*first, *second)

    step("cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step("cuda")
    for shift in (0, 7, 4000):
        positions.sub_(shift)
        table.add_(shift)
        slots.neg_()
        for buffer in (*buffers, lens):
            buffer.fill_(-99)
        graph.replay()
        found = [part.clone() for part in captured]
        expected = step("torch")
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.gpu
@needs_gpu
def test_no_shape_compiles_or_loads_anything_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    warmup_sparse_kernels()
    monkeypatch.setattr(nvrtc, "_load", lambda device: pytest.fail("loaded again"))
    for rows in (1, 2, 17, 4096):
        for width in (1, 127, 128, 1024):
            topk = torch.zeros((rows, width), dtype=torch.int32, device="cuda")
            requests = torch.zeros(rows, dtype=torch.int32, device="cuda")
            table = torch.full((1, 4), 9, dtype=torch.int32, device="cuda")
            out, lens = compute_c4a_global_topk(topk, requests, table, 64, requests == 0)
            assert int(out.min()) == int(out.max()) == 576
            assert int(lens.min()) == int(lens.max()) == width


@pytest.mark.gpu
@needs_gpu
def test_runs_on_the_current_stream_and_on_two_at_once() -> None:
    warmup_sparse_kernels()
    table = torch.arange(64, dtype=torch.int32, device="cuda").view(1, 64)
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [torch.full((64, 512), i, dtype=torch.int32, device="cuda") for i in range(2)]
    requests = torch.zeros(64, dtype=torch.int32, device="cuda")
    valid = torch.ones(64, dtype=torch.bool, device="cuda")
    torch.cuda.synchronize()
    results = []
    for _ in range(50):
        for stream, topk in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                results.append(compute_c4a_global_topk(topk, requests, table, 64, valid))
    torch.cuda.synchronize()
    for i, (out, lens) in enumerate(results):
        assert bool((out == i % 2).all())
        assert bool((lens == 512).all())
