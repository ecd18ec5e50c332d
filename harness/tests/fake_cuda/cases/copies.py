"""Copies between host and device, hidden and plain, and constants made the right way."""

from __future__ import annotations

import torch

from harness.tests.fake_cuda.cases.case import STATE, case

LUT = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
CPU_LUT = torch.tensor(LUT)


@case("break")
def seed_bug(x):
    return torch.bucketize(x.float().abs(), torch.tensor(LUT, device=x.device))


@case("ok")
def lut_cached(x):
    if x.device not in STATE.cache:
        STATE.cache[x.device] = torch.tensor(LUT, device=x.device)
    return torch.bucketize(x.float().abs(), STATE.cache[x.device])


@case("break")
def lut_cpu_global_to(x):
    return torch.bucketize(x.float().abs(), CPU_LUT.to(x.device))


@case("break")
def lut_new_tensor(x):
    return x.float() * x.new_tensor(3.0, dtype=torch.float32)


@case("break")
def lut_new_tensor_list(x):
    return torch.bucketize(x.float(), x.new_tensor(LUT, dtype=torch.float32))


@case("break")
def as_tensor(x):
    return x.float() * torch.as_tensor(2.0, device=x.device)


@case("ok")
def scalar_tensor(x):
    return x.float() * torch.scalar_tensor(2.0, device=x.device)


@case("ok")
def full0(x):
    return x.float() * torch.full((), 2.0, device=x.device)


@case("break")
def to_nb_pageable(x):
    return x.float() * torch.ones(64).to(x.device, non_blocking=True)


@case("hazard")
def to_nb_pinned(x):
    return x.float() * torch.ones(64, pin_memory=True).to(x.device, non_blocking=True)


@case("hazard")
def pin_method_nb(x):
    return x.float() * torch.ones(64).pin_memory().to(x.device, non_blocking=True)


@case("break")
def to_pinned_blocking(x):
    return x.float() * torch.ones(64, pin_memory=True).to(x.device)


@case("break")
def cuda_method(x):
    return x.float() * torch.ones(64).cuda()


@case("break")
def copy_h2d(x):
    y = torch.empty(64, device=x.device)
    y.copy_(torch.ones(64))
    return x + y


@case("break")
def cpu(x):
    return x.cpu()


@case("hazard")
def cpu_nb(x):
    return x.to("cpu", non_blocking=True)


@case("ok")
def cpu_scalar_mix(x):
    return x * torch.tensor(2.0)
