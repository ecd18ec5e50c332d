"""The host wants a value of the device."""

from __future__ import annotations

import contextlib

import torch

from harness.tests.fake_cuda.cases.case import case


@case("break")
def numpy(x):
    return x.float().cpu().numpy()


@case("break")
def tolist(x):
    return x[0, 0:2].tolist()


@case("break")
def item(x):
    return x * x.amax().item()


@case("break")
def float_(x):
    return x * float(x.float().amax())


@case("break")
def if_any(x):
    return x.nan_to_num() if x.isnan().any() else x * 1


@case("break")
def assert_finite(x):
    assert torch.isfinite(x).all()
    return x * 1


@case("ok")
def assert_async(x):
    torch._assert_async(torch.isfinite(x).all())
    return x * 1


@case("break")
def print_t(x):
    str(x)
    return x * 1


@case("break")
def fstring(x):
    _ = f"{x.amax()}"
    return x * 1


@case("ok")
def equal(x):
    return x * 1 if torch.equal(x, x) else x * 2


@case("break")
def allclose(x):
    return x * 1 if torch.allclose(x, x) else x * 2


@case("break")
def try_except_item(x):
    with contextlib.suppress(Exception):
        x.amax().item()
    return x * 2


@case("break")
def python_max(x):
    return max(x[0, 0], x[0, 1])


@case("break")
def in_op(x):
    return x * 1 if 3 in x else x


@case("break")
def slice_cuda(x):
    return x[: (x[0, 0] > 0).long() + 1]


@case("break")
def arange_n(x):
    return torch.arange(int((x[0, 0] > 0).long()) + 3, device=x.device)


@case("break")
def split_sizes_tolist(x):
    return torch.split(x, (x[:2, 0] > 0).long().tolist())


@case("break")
def histc0(x):
    return torch.histc(x.float(), 8)


@case("ok")
def histc_rng(x):
    return torch.histc(x.float(), 8, min=-1, max=1)


@case("break")
def inverse(x):
    return torch.linalg.inv(torch.eye(8, device=x.device))


@case("ok")
def isin(x):
    return torch.isin(x.long(), torch.arange(4, device=x.device))


@case("ok")
def data_ptr(x):
    x.data_ptr()
    return x * 2
