"""Operators that were not in the first measured set: labels by reading torch's CUDA sources."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from harness.tests.fake_cuda.cases.case import STATE, case


def indices(x):
    return torch.arange(2, device=x.device)


# -- the host waits


@case("break")
def bincount_plain(x):
    return torch.bincount((x[:, 0] > 0).long())


@case("break")
def is_nonzero(x):
    return x * 1 if x[0, 0].is_nonzero() else x


@case("break")
def full_like_from_item(x):
    return torch.full_like(x, x.amax().item())


@case("break")
def masked_fill_device_scalar(x):
    return x.masked_fill(x > 0, torch.zeros((), device=x.device, dtype=x.dtype))


@case("break")
def index_fill_device_scalar(x):
    return x.index_fill(0, indices(x), torch.zeros((), device=x.device, dtype=x.dtype))


@case("break")
def equal_other(x):
    return x * 1 if torch.equal(x, x + 1) else x * 2


@case("break")
def argwhere(x):
    return torch.argwhere(x > 0)


@case("break")
def unique_consecutive(x):
    return torch.unique_consecutive(x.flatten())


@case("break")
def tensor_of_device_scalars(x):
    return torch.tensor([x[0, 0], x[0, 1]], device=x.device)


@case("break")
def narrow_by_tensor(x):
    return torch.narrow(x, 0, (x[0, 0] > 0).long(), 2)


@case("break")
def topk_of_device_count(x):
    return torch.topk(x, int((x[0] > 0).sum().clamp(1, 4)))


@case("break")
def cholesky(x):
    return torch.linalg.cholesky(torch.eye(8, device=x.device))


@case("break")
def embedding_max_norm(x):
    return F.embedding(indices(x), x.float(), max_norm=1.0)


# -- a copy from the host


@case("break")
def where_cpu_scalar_tensor(x):
    return torch.where(x > 0, x, torch.tensor(0.0, dtype=x.dtype))


@case("break")
def assign_cpu_column(x):
    y = x.clone()
    y[:, 0] = torch.zeros(8, dtype=x.dtype)
    return y


@case("break")
def from_numpy(x):
    return x.float() + torch.from_numpy(torch.zeros(64).numpy()).to(x.device)


@case("break")
def index_put_cpu_index(x):
    y = x.clone()
    y.index_put_((torch.tensor([0, 1]),), torch.zeros((), device=x.device, dtype=x.dtype))
    return y


@case("hazard")
def pinned_allocation(x):
    STATE.buffer = torch.empty(64, pin_memory=True)
    return x * 2


# -- safe


@case("ok")
def equal_other_shape(x):
    return x * 1 if torch.equal(x, x[:4]) else x * 2


@case("ok")
def where_two_scalars(x):
    return torch.where(x > 0, 1.0, 0.0)


@case("ok")
def index_fill(x):
    return x.index_fill(0, indices(x), 0.0)


@case("ok")
def index_copy(x):
    return x.index_copy(0, indices(x), x[:2])


@case("ok")
def index_add(x):
    return x.index_add(0, indices(x), x[:2])


@case("ok")
def masked_scatter(x):
    return x.masked_scatter(x > 0, x)


@case("ok")
def masked_fill_cpu_scalar(x):
    return x.masked_fill(x > 0, torch.tensor(0.0, dtype=x.dtype))


@case("ok")
def fill_device_scalar(x):
    return torch.empty_like(x).fill_(x[0, 0])


@case("ok")
def to_dtype(x):
    return x.to(torch.float32).to(torch.float16)


@case("ok")
def to_same_device(x):
    return x.to("cuda") * 2


@case("ok")
def factories(x):
    kind = {"device": x.device}
    parts = (torch.zeros(4, **kind), torch.ones(4, **kind), torch.arange(4, **kind), torch.linspace(0, 1, 4, **kind))
    return [*parts, torch.eye(4, **kind), torch.empty(4, **kind), x.new_zeros(4), x.new_full((4,), 2.0)]


@case("ok")
def embedding(x):
    return F.embedding(indices(x), x)


@case("ok")
def searchsorted(x):
    return torch.searchsorted(torch.arange(8, device=x.device, dtype=torch.float32), x.float())


@case("ok")
def cumsum_flat(x):
    return x.float().flatten().cumsum(0)


@case("ok")
def count_nonzero(x):
    return torch.count_nonzero(x)


@case("ok")
def views(x):
    return x.narrow(0, 0, 2).expand(2, 64).t().unsqueeze(0).reshape(2, 64) + 1


@case("ok")
def cat_and_stack(x):
    return torch.stack([torch.cat([x, x]), torch.cat([x, x])])


@case("ok")
def gather(x):
    return torch.take_along_dim(x, x.argsort(-1), -1)


@case("ok")
def foreach(x):
    return torch._foreach_mul([x, x[:2]], 2.0)


@case("ok")
def foreach_list(x):
    return torch._foreach_mul([x, x[:2]], [2.0, 3.0])


@case("ok")
def foreach_copy(x):
    targets = [torch.empty_like(x), torch.empty_like(x)]
    torch._foreach_copy_(targets, [x, x])
    return targets


@case("ok")
def einsum(x):
    return torch.einsum("ij,kj->ik", x, x)


@case("ok")
def layer_norm(x):
    return F.layer_norm(x, (64,))


@case("ok")
def softmax_backward_free(x):
    return F.softmax(x.float(), -1).log()


@case("ok")
def out_buffer(x):
    if STATE.buffer is None:
        STATE.buffer = torch.empty_like(x)
    return torch.add(x, x, out=STATE.buffer)


@case("ok")
def cpu_scalar_arithmetic(x):
    return (x + torch.tensor(1.0)) * 3 - 0.5


@case("ok")
def device_scalar_factor(x):
    return x * x.float().amax()
