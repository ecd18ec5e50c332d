"""Shapes that depend on data, and their static twins."""

from __future__ import annotations

import torch

from harness.tests.fake_cuda.cases.case import case


@case("break")
def nonzero(x):
    return (x > 0).nonzero()


@case("ok")
def nonzero_static(x):
    return torch.nonzero_static(x > 0, size=8)


@case("break")
def mask_get(x):
    return x[x > 0]


@case("break")
def masked_select(x):
    return torch.masked_select(x, x > 0)


@case("break")
def where1(x):
    return torch.where(x > 0)


@case("ok")
def where3(x):
    return torch.where(x > 0, x, 0.0)


@case("break")
def unique(x):
    return torch.unique(x)


@case("break")
def rep_int(x):
    return torch.repeat_interleave(x, torch.ones(8, dtype=torch.long, device=x.device), dim=0)


@case("ok")
def rep_int_os(x):
    return torch.repeat_interleave(x, torch.ones(8, dtype=torch.long, device=x.device), dim=0, output_size=8)


@case("ok")
def rep_int_int(x):
    return torch.repeat_interleave(x, 2, dim=0)


@case("break")
def bincount(x):
    return torch.bincount((x[:, 0] > 0).long(), minlength=8)


@case("break")
def one_hot(x):
    return torch.nn.functional.one_hot((x[:, 0] > 0).long())


@case("ok")
def one_hot_n(x):
    return torch.nn.functional.one_hot((x[:, 0] > 0).long(), 2)


@case("ok")
def split_list(x):
    return torch.split(x, [3, 5])


@case("ok")
def split_tensor_cpu(x):
    return torch.tensor_split(x, torch.tensor([2, 5]))


@case("ok")
def len_shape(x):
    return x * x.shape[0] + len(x)
