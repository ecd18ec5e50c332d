"""What a call keeps: caches, counters, hidden buffers; and work on the host."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import torch

from harness.tests.fake_cuda.cases.case import STATE, case

LOCK = threading.Lock()


@case("hazard")
def realloc_hidden(x):
    STATE.buffer = torch.empty(8, 64, device=x.device) if STATE.calls % 2 == 0 else STATE.buffer
    STATE.calls += 1
    return x + STATE.buffer


@case("ok")
def hidden_static(x):
    if STATE.buffer is None:
        STATE.buffer = torch.zeros(8, 64, device=x.device)
    return x + STATE.buffer


@case("hazard")
def swapped_hidden(x):
    new = torch.zeros(8, 64, device=x.device)
    r = x + (STATE.buffer if STATE.buffer is not None else new)
    STATE.buffer = new
    return r


@case("hazard")
def counter_branch(x):
    STATE.calls += 1
    return x * 2 if STATE.calls % 2 else (x + 1) * 2


@case("hazard")
def counter_const(x):
    STATE.calls += 1
    return x * STATE.calls


@case("hazard")
def cache_by_shape_cold(x):
    k = ("k", STATE.calls // 3)
    STATE.calls += 1
    if k not in STATE.cache:
        STATE.cache[k] = torch.zeros(64, device=x.device)
    return x + STATE.cache[k]


@case("ok")
def lock_(x):
    with LOCK:
        return x * 2


@case("ok")
def empty_cache(x):
    torch.cuda.empty_cache()
    return x * 1


@case("hazard")
def lazy_import(x):
    sys.modules.pop("colorsys", None)
    import colorsys  # noqa: F401

    return x * 2


@case("hazard")
def subprocess_(x):
    subprocess.run(["true"], check=True)
    return x * 2


@case("ok")
def gc_collect(x):
    gc.collect()
    return x * 2
