"""Device scratch that outlives a call: split-K parts, arrival counters, partial maxima. One set a (device, stream).

Counters are zero between launches: every kernel that uses one puts it back. Two streams never share a set, since
their launches may overlap. A set is never made inside a CUDA-graph capture, where its zeroing would be one more
node of the graph and its memory would belong to the graph's pool: sets made beforehand wait there (`_SPARES`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

PARTIAL_MAXIMA = 512
_SPARES = 3


@dataclass(frozen=True)
class Scratch:
    parts: torch.Tensor
    """uint8: fp32 accumulators of one tile a block."""
    counters: torch.Tensor
    """int32, one a block and warp."""
    maxima: torch.Tensor
    """fp32 (512,)."""
    arrivals: torch.Tensor
    """int32 (1,)."""
    grid: int
    """Blocks of a persistent launch: the device's multiprocessors."""


_of_stream: dict[tuple[int, int], Scratch] = {}
_spares: dict[int, list[Scratch]] = {}


def scratch(device: torch.device) -> Scratch:
    """The current stream's set. 0.4 us when it exists."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    stream = torch._C._cuda_getCurrentRawStream(index)  # torch.cuda.current_stream() makes an object: 3 us
    found = _of_stream.get((index, stream))
    return found if found is not None else _adopt(index, stream)


def _adopt(index: int, stream: int) -> Scratch:
    spares = _spares.setdefault(index, [])
    if not torch.cuda.is_current_stream_capturing():
        while len(spares) <= _SPARES:
            spares.append(_make(torch.device("cuda", index)))
        torch.cuda.synchronize(index)  # zeroed before any stream may use them
    elif not spares:
        raise RuntimeError(
            "no scratch memory left for a new capture stream: run the operation once eagerly on this device before "
            "the capture, or capture on a stream that already ran it"
        )
    _of_stream[index, stream] = spares.pop()
    return _of_stream[index, stream]


def _make(device: torch.device) -> Scratch:
    from kernels.sm90.gemm import TILES, config

    grid = torch.cuda.get_device_properties(device).multi_processor_count
    shapes = [config(name) for name in TILES]
    return Scratch(
        parts=torch.empty(grid * max(c.partial_bytes for c in shapes), dtype=torch.uint8, device=device),
        counters=torch.zeros(grid * max(c.consumers for c in shapes) // 32, dtype=torch.int32, device=device),
        maxima=torch.empty(PARTIAL_MAXIMA, dtype=torch.float32, device=device),
        arrivals=torch.zeros(1, dtype=torch.int32, device=device),
        grid=grid,
    )
