"""Streams, events and synchronisation."""

from __future__ import annotations

import torch

from harness.tests.fake_cuda.cases.case import STATE, case


@case("break")
def sync(x):
    torch.cuda.synchronize()
    return x * 1


@case("break")
def stream_sync(x):
    torch.cuda.current_stream().synchronize()
    return x * 1


@case("break")
def event_sync(x):
    e = torch.cuda.Event()
    e.record()
    e.synchronize()
    return x * 1


@case("ok")
def fork_join(x):
    s = torch.cuda.Stream() if STATE.stream is None else STATE.stream
    STATE.stream = s
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        y = x * 2
    torch.cuda.current_stream().wait_stream(s)
    return y + 1


@case("break")
def fork_nojoin(x):
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        y = x * 2
    STATE.stream = s
    return y


@case("break")
def side_stream_nowait(x):
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        y = x * 2
    torch.cuda.current_stream().wait_stream(s)
    return y
