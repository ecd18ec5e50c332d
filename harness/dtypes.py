"""Short names of dtypes, as they stand in case ids (``m128-k7168-bf16-normal``)."""

from __future__ import annotations

import torch

DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a short name; ValueError that lists the known names otherwise."""
    try:
        return DTYPES[name]
    except KeyError:
        raise ValueError(f"unknown dtype {name!r}; expected one of {', '.join(DTYPES)}") from None


def itemsize(name: str) -> int:
    """Bytes per element of the dtype with this short name."""
    return torch_dtype(name).itemsize
