"""Random numbers."""

from __future__ import annotations

import torch

from harness.tests.fake_cuda.cases.case import STATE, case


@case("ok")
def randn(x):
    return x + torch.randn_like(x)


@case("break")
def rand_gen(x):
    if STATE.generator is None:
        STATE.generator = torch.Generator(device=x.device)
    return x + torch.rand(8, 64, device=x.device, generator=STATE.generator)


@case("hazard")
def seed_in(x):
    torch.cuda.manual_seed(0)
    return x + torch.randn_like(x)


@case("ok")
def dropout(x):
    return torch.nn.functional.dropout(x, 0.5, True)


@case("ok")
def multinomial(x):
    return torch.multinomial(x.float().softmax(-1), 1)
