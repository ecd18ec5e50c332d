"""Real weights: tensors of a safetensors file as inputs.

A source is ``FILE#TENSOR``. Only floating-point tensors of two or more dimensions are offered; a file is read
tensor by tensor, never as a whole.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

_NAMES = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16"}


def list_tensors(path: Path | str) -> dict[str, tuple[tuple[int, ...], str]]:
    """``{"FILE#NAME": (shape, dtype name)}`` of the floating-point tensors with at least two dimensions.

    Raises FileNotFoundError when there is no such file and ValueError when it is not a safetensors file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no such checkpoint: {path} (expected a .safetensors file)")
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    try:
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - a safetensors file is no mapping
                view = file.get_slice(name)
                shape, dtype = tuple(view.get_shape()), view.get_dtype()
                if len(shape) >= 2 and dtype in _NAMES:
                    found[f"{path}#{name}"] = (shape, _NAMES[dtype])
    except Exception as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from error
    return found


def load_tensor(source: str) -> torch.Tensor:
    """The tensor of a source ``FILE#TENSOR``, on the CPU, in the file's dtype."""
    path, _, name = source.rpartition("#")
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)
