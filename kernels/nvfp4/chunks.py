"""Walk a tensor in pieces of bounded size, so that fp32 temporaries stay bounded whatever the tensor's size."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Elements worked on at a time. 4 Mi fp32 elements are 16 MiB a temporary: large enough to fill a GPU (about 28
# kernels' worth of 132 SMs), small enough that all temporaries together stay below half of an 8192 x 7168 bf16 input.
CHUNK_ELEMENTS = 1 << 22


CHUNKS_AT_MOST = 32


def chunk_elements(total: int) -> int:
    """Elements of a chunk for a tensor of `total`: grows with it, so that a stack of experts is not thousands of
    launches. A 32nd of a bf16 operand, at 15 bytes of workspace an element, is 23 % of it; codes and scales are 28 %.
    """
    return max(CHUNK_ELEMENTS, total // CHUNKS_AT_MOST)


def chunks(shape: tuple[int, ...], limit: int = CHUNK_ELEMENTS) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Pieces of a (..., K) tensor as (leading indices, start, stop): `x[lead][start:stop]`, at most `limit` elements.

    Cuts only leading dimensions, as few as possible; a single row longer than `limit` stays whole. Works for any
    strides, since a piece is reached by indexing and never by flattening.
    """
    count = 1
    for n in shape:
        count *= n
    if count == 0:
        return
    if len(shape) == 1:
        yield (), 0, shape[0]
        return
    inner = count // shape[0]
    if inner <= limit:
        step = max(1, limit // inner)
        for start in range(0, shape[0], step):
            yield (), start, min(start + step, shape[0])
    elif len(shape) == 2:  # a row longer than the limit: one row at a time
        for row in range(shape[0]):
            yield (), row, row + 1
    else:
        for i in range(shape[0]):
            for lead, start, stop in chunks(shape[1:], limit):
                yield (i, *lead), start, stop


def piece(t: torch.Tensor, lead: tuple[int, ...], start: int, stop: int) -> torch.Tensor:
    """The view that `chunks` names. `select` and `narrow` only: integer indexing of a tensor is a view too, but these
    never become an index kernel."""
    for i in lead:
        t = t.select(0, i)
    return t.narrow(0, start, stop - start)
