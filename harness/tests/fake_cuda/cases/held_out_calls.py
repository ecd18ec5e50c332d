"""Streams, state, randomness, host work and custom operators that were not in the first measured set."""

from __future__ import annotations

import ctypes
import random
import threading
import weakref
from functools import lru_cache

import torch

from harness.tests.fake_cuda.cases.case import STATE, case

_WEAK: weakref.WeakValueDictionary[str, torch.Tensor] = weakref.WeakValueDictionary()

# -- streams and events


@case("ok")
def fork_join_nested(x):
    outer, inner = torch.cuda.Stream(), torch.cuda.Stream()
    outer.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(outer):
        y = x * 2
        inner.wait_stream(outer)
        with torch.cuda.stream(inner):
            z = y + 1
        outer.wait_stream(inner)
    torch.cuda.current_stream().wait_stream(outer)
    STATE.stream = (outer, inner)
    return y + z


@case("break")
def fork_join_nested_too_early(x):
    outer, inner = torch.cuda.Stream(), torch.cuda.Stream()
    outer.wait_stream(torch.cuda.current_stream())
    inner.wait_stream(outer)
    torch.cuda.current_stream().wait_stream(outer)
    with torch.cuda.stream(inner):
        y = x * 2
    outer.wait_stream(inner)  # nobody waits for outer any more
    STATE.stream = (outer, inner)
    return y


@case("ok")
def fork_join_events(x):
    side = torch.cuda.Stream()
    before, after = torch.cuda.Event(), torch.cuda.Event()
    before.record()
    side.wait_event(before)
    with torch.cuda.stream(side):
        y = x * 2
        after.record()
    after.wait()
    STATE.stream = side
    return y + 1


@case("break")
def wait_for_event_of_warmup(x):
    if STATE.event is None:
        STATE.event = torch.cuda.Event()
        STATE.event.record()
    torch.cuda.current_stream().wait_event(STATE.event)
    return x * 2


@case("ok")
def wait_for_unrecorded_event(x):
    torch.cuda.current_stream().wait_event(torch.cuda.Event())
    return x * 2


@case("break")
def event_query(x):
    event = torch.cuda.Event()
    event.record()
    return x * 2 if event.query() else x


@case("hazard")
def stream_kept_from_warmup(x):
    if STATE.stream is None:
        STATE.stream = torch.cuda.current_stream()
    with torch.cuda.stream(STATE.stream):
        return x * 2


@case("hazard")
def record_stream(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    y = x * 2
    y.record_stream(side)
    with torch.cuda.stream(side):
        z = y + 1
    torch.cuda.current_stream().wait_stream(side)
    STATE.stream = side
    return z


# -- state and host values


@case("ok")
def weak_cache(x):
    buffer = _WEAK.get("buffer")
    if buffer is None:
        buffer = torch.zeros(64, device=x.device)
        _WEAK["buffer"] = buffer
    return x + buffer


@lru_cache(maxsize=8)
def _steps(device, steps):
    return torch.arange(steps, device=device) / steps


@case("ok")
def memoised_table(x):
    return x + _steps(str(x.device), 64)


@case("hazard")
def python_random(x):
    return x * random.random()


@case("hazard")
def alternating_buffers(x):
    if STATE.buffer is None:
        STATE.buffer = [torch.zeros(64, device=x.device), torch.zeros(64, device=x.device)]
    STATE.calls += 1
    return x + STATE.buffer[STATE.calls % 2]


@case("hazard")
def growing_buffer(x):
    STATE.calls += 1
    if STATE.buffer is None:
        STATE.buffer = torch.zeros(64, device=x.device)
    STATE.buffer.resize_(64 * STATE.calls)
    return x + STATE.buffer[:64]


@case("hazard")
def history_of_results(x):
    y = x * 2 if STATE.buffer is None else x + STATE.buffer
    STATE.buffer = y
    return y


@case("ok")
def updated_in_place(x):
    if STATE.buffer is None:
        STATE.buffer = torch.zeros(8, 64, device=x.device)
    STATE.buffer.add_(x)
    return STATE.buffer * 2


@case("hazard")
def load_library(x):
    ctypes.CDLL("libm.so.6")
    return x * 2


@case("hazard")
def starts_a_thread(x):
    worker = threading.Thread(target=len, args=("",))
    worker.start()
    worker.join()
    return x * 2


@case("ok")
def generated_code(x):
    scope = {}
    exec("factor = 2", scope)
    return x * scope["factor"]


@case("ok")
def device_context_and_properties(x):
    with torch.cuda.device(x.device):
        wide = torch.cuda.get_device_properties(x.device).multi_processor_count > 1
    return x * (2 if wide else 3)


@case("ok")
def aligned_pointer(x):
    return x * 2 if x.data_ptr() % 16 == 0 else x * 2 + 0


# -- random numbers


@case("ok", registers_generator=True)
def registered_generator(x):
    return x + torch.rand(8, 64, device=x.device, generator=STATE.generator)


@case("break")
def another_seed(x):
    STATE.calls += 1
    torch.cuda.manual_seed(STATE.calls)
    return x + torch.randn_like(x)


@case("break")
def read_generator_state(x):
    torch.cuda.get_rng_state()
    return x + torch.randn_like(x)


@case("break")
def generator_made_inside(x):
    STATE.generator = torch.Generator(device=x.device)
    return x + torch.rand(8, 64, device=x.device, generator=STATE.generator)


@case("ok")
def in_place_random(x):
    return torch.empty_like(x).normal_() + torch.randint(0, 4, (8, 64), device=x.device) + torch.bernoulli(x.abs() * 0)


# -- custom operators written in Python, which the lint looks into


@torch.library.custom_op("capture_cases::twice", mutates_args=())
def _twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@_twice.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("capture_cases::scaled", mutates_args=())
def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * x.amax().item()


@_scaled.register_fake
def _(x):
    return torch.empty_like(x)


@case("ok")
def custom_op(x):
    return _twice(x)


@case("break")
def custom_op_that_reads(x):
    return _scaled(x)
