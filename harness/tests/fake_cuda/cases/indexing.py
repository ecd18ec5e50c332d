"""Advanced indexing and assignment."""

from __future__ import annotations

import torch

from harness.tests.fake_cuda.cases.case import case


@case("ok")
def mask_set_scalar(x):
    y = x.clone()
    y[y > 0] = 0.0
    return y


@case("break")
def mask_set_tensor(x):
    y = x.clone()
    m = y > 0
    y[m] = torch.zeros((), device=x.device, dtype=x.dtype).expand(3)
    return y


@case("break")
def mask_set_cuda0d(x):
    y = x.clone()
    y[y > 0] = torch.zeros((), device=x.device, dtype=x.dtype)
    return y


@case("break")
def idxput_scalar(x):
    y = x.clone()
    y[torch.arange(2, device=x.device)] = 0.0
    return y


@case("ok")
def idxput_tensor(x):
    y = x.clone()
    y[torch.arange(2, device=x.device)] = torch.zeros((), device=x.device, dtype=x.dtype)
    return y


@case("break")
def mask_set_rows(x):
    y = x.clone()
    y[y.amax(1) > 0] = torch.zeros(64, device=x.device, dtype=x.dtype)
    return y


@case("ok")
def masked_fill(x):
    return x.masked_fill(x > 0, 0.0)


@case("break")
def idx_list(x):
    return x[[0, 1]]


@case("break")
def idx_cpu(x):
    return x[torch.tensor([0, 1])]


@case("ok")
def idx_arange(x):
    return x[torch.arange(2, device=x.device)]


@case("break")
def idx_0d_cuda(x):
    return x[(x[0, 0] > 0).long()]


@case("ok")
def idx_select_0d(x):
    return x.index_select(0, (x[0, :1] > 0).long())


@case("break")
def index_put_list(x):
    y = x.clone()
    y[[0, 1]] = 0.0
    return y


@case("break")
def set_py_scalar(x):
    y = x.clone()
    y[0, 0] = 1.0
    return y


@case("ok")
def set_row_scalar(x):
    y = x.clone()
    y[0] = 1.0
    return y


@case("ok")
def scatter_add(x):
    return torch.zeros(8, 64, device=x.device, dtype=x.dtype).scatter_add_(
        0, torch.zeros(8, 64, dtype=torch.long, device=x.device), x
    )
