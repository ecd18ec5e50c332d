"""The pretended device: what works on it, and that nothing of it is left behind."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time

import pytest
import torch

from harness.fake_cuda import GuardKind, TensorMeta, fake_cuda, guard, lint_capture, to_fake
from harness.fake_cuda.device import is_active

WATCHED = (torch, torch.cuda, torch.cuda.nvtx, torch.cuda.random, torch.accelerator, torch.Tensor, threading.Thread)


def state_of_torch():
    attributes = [dict(vars(owner)) for owner in WATCHED]
    flags = (
        torch._C._only_lift_cpu_tensors(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        logging.getLogger("torch._subclasses.fake_tensor").disabled,
        list(guard._table()),
    )
    return attributes, flags


def raises(x):
    torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
    raise KeyError("inside")


def test_everything_is_put_back_also_when_the_function_raises():
    with fake_cuda():
        lint_capture(raises, (torch.randn(4, device="cuda"),))  # lazy imports of torch happen now, not below
    before = state_of_torch()
    with contextlib.suppress(KeyError), fake_cuda():
        x = torch.randn(4, device="cuda")
        assert lint_capture(raises, (x,)).verdict in ("error", "break")
        with pytest.raises(KeyboardInterrupt):  # not an Exception: passes through the lint
            interrupt(x)
        raise KeyError("outside")
    after = state_of_torch()
    assert before[1] == after[1]
    for owner, old, new in zip(WATCHED, before[0], after[0], strict=True):
        changed = [name for name in {*old, *new} if old.get(name) is not new.get(name)]
        assert changed == [], owner
    assert not is_active()
    assert not torch.cuda.is_available() or guard.guard_kind() is GuardKind.REAL


def interrupt(x):
    def stops(x):
        raise KeyboardInterrupt

    return lint_capture(stops, (x,))


def test_the_lint_leaves_the_device_as_it_was():
    with fake_cuda() as device:
        current = torch.cuda.current_stream()
        with pytest.raises(KeyboardInterrupt):
            interrupt(torch.randn(4, device="cuda"))
        assert device.listener is None
        assert not device.capturing
        assert torch.cuda.current_stream() == current


def test_blocks_do_not_nest_and_say_so():
    with fake_cuda(name="outer"), pytest.raises(RuntimeError, match="cannot be nested"), fake_cuda():
        pass
    with fake_cuda():  # and the failed attempt has broken nothing
        assert torch.empty(1, device="cuda").is_cuda


def test_the_device_answers_as_described():
    with fake_cuda(capability=(10, 0), name="NVIDIA B200", sm_count=148, l2_bytes=126 << 20, total_memory=180 << 30):
        properties = torch.cuda.get_device_properties("cuda")
        assert (properties.major, properties.minor, properties.multi_processor_count) == (10, 0, 148)
        assert properties.L2_cache_size == 126 << 20
        assert torch.cuda.get_device_capability() == (10, 0)
        assert torch.cuda.get_device_name() == "NVIDIA B200"
        assert torch.cuda.mem_get_info()[1] == 180 << 30
        assert torch.cuda.is_available()
        with torch.cuda.device(0):
            assert torch.cuda.current_device() == 0


def test_input_builders_work_at_full_size_without_memory():
    with fake_cuda():
        generator = torch.Generator(device="cuda").manual_seed(7)
        assert isinstance(generator, torch.Generator)
        assert generator.device == torch.device("cuda", 0)
        x = torch.randn(8192, 7168, device="cuda", dtype=torch.bfloat16, generator=generator)
        assert x.abs().amax().item() == 1.0
        assert bool((x > 0).any())
        assert x[0, :3].tolist() == [1.0, 1.0, 1.0]
        assert torch.tensor([2, 3]).tolist() == [2, 3]
        assert torch.tensor([2.0, 3.0]).numpy().tolist() == [2.0, 3.0]
        assert torch.randperm(100, device="cuda", generator=generator).shape == (100,)
        assert x.float().cpu().numpy().shape == (8192, 7168)
        assert torch.empty(4, pin_memory=True).is_pinned()
        assert x.to(torch.float8_e4m3fn).view(torch.uint8).device.type == "cuda"
        with pytest.raises(TypeError, match="cuda"):
            x.float().numpy()


def test_literal_values_are_forgotten_when_written_to():
    with fake_cuda():
        sections = torch.tensor([2, 5])
        assert [tuple(part.shape) for part in torch.tensor_split(torch.empty(8, device="cuda"), sections)] == [
            (2,),
            (3,),
            (3,),
        ]
        sections.add_(1)
        assert sections.tolist() == [1, 1]  # not known any more: the plausible value


def test_to_fake_keeps_looks_and_shared_storage():
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    tree = {"view": base[1:, ::2], "same": base, "number": 3, "meta": TensorMeta((2, 3), (3, 1), torch.int8, "cuda")}
    with fake_cuda():
        fake = to_fake(tree)
        view = fake["view"]
        assert (view.shape, view.stride(), view.storage_offset(), view.dtype) == ((3, 3), (6, 2), 6, torch.float32)
        assert view.is_cuda
        assert view.untyped_storage()._cdata == fake["same"].untyped_storage()._cdata
        assert fake["same"].untyped_storage().nbytes() == base.untyped_storage().nbytes()
        assert fake["number"] == 3
        assert (fake["meta"].shape, fake["meta"].dtype) == ((2, 3), torch.int8)
        assert lint_capture(lambda t: t["view"] * 2, (fake,)).verdict == "ok"


def test_a_table_kept_by_the_code_under_test_works_in_the_next_block():
    tables = {}

    def cached(x):
        if x.device not in tables:
            tables[x.device] = torch.arange(8, device=x.device, dtype=torch.float32)
        return torch.bucketize(x, tables[x.device])

    for _ in range(2):
        with fake_cuda():
            assert lint_capture(cached, (torch.randn(4, device="cuda"),)).verdict == "ok"


def test_graphs_are_refused_with_advice():
    with fake_cuda(), pytest.raises(NotImplementedError, match="lint_capture"):
        torch.cuda.CUDAGraph()


def test_nvtx_calls_are_recorded():
    with fake_cuda() as device:
        with torch.cuda.nvtx.range("quantise"):
            torch.cuda.nvtx.mark("here")
        assert device.nvtx == [("push", "quantise"), ("mark", "here"), ("pop", None)]


def test_guard_kind_follows_the_build(monkeypatch):
    monkeypatch.setattr(guard, "_table", lambda: [1, 1, *[None] * 19])
    if not torch.cuda.is_available():
        assert guard.guard_kind() is GuardKind.TORCH  # a CUDA build without a GPU: nothing is installed
        with guard.cuda_guard() as kind:
            assert kind is GuardKind.TORCH
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert guard.guard_kind() is GuardKind.REAL


def test_an_unknown_layout_of_torch_is_refused_loudly(monkeypatch):
    monkeypatch.setattr(guard, "_kept_alive", [])
    with pytest.raises(guard.FakeCudaUnavailable, match="layout"):
        guard._stand_in_pointer([None] * 21)


def test_a_full_size_lint_takes_tens_of_milliseconds():
    def quantise(x):
        blocks = x.float().view(8192, 448, 16)
        scale = (blocks.abs().amax(-1, keepdim=True) / 6).clamp(min=1e-12)
        return (blocks / scale).round().to(torch.int8), scale

    with fake_cuda():
        x = torch.randn(8192, 7168, device="cuda", dtype=torch.bfloat16)
        lint_capture(quantise, (x,))
        times = []
        for _ in range(5):
            gc.collect()
            start = time.perf_counter()
            lint_capture(quantise, (x,))
            times.append(time.perf_counter() - start)
    assert min(times) < 0.2, times  # 10 ms on an idle core; the bound allows for a busy machine
