"""Read quantised weights from safetensors files: NVFP4 by ModelOpt or compressed-tensors, MXFP4 experts of
DeepSeek-V4.

The header is read directly, so that 4-bit tensors of any declared type (U8, I8, F4) arrive as the bytes they are:
torch has no arithmetic for its 4-bit type and safetensors no torch name for it. Tensors are recognised by their
names:

    ModelOpt             X.weight uint8, X.weight_scale E4M3, X.weight_scale_2, [X.input_scale]
    compressed-tensors   X.weight_packed, X.weight_scale, X.weight_global_scale, [X.input_global_scale]; reciprocals
    DeepSeek-V4 MXFP4    X.weight 4-bit, X.scale E8M0 for 32 elements

X is a module, such as `layers.3.ffn.experts.7.w1` or `model.layers.0.mlp.experts.5.gate_proj`.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.nvfp4.convert import Nvfp4Tensor, from_compressed_tensors, from_modelopt
from kernels.nvfp4.mxfp4 import cast_mxfp4_to_nvfp4

_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "BOOL": torch.bool,
    "F8_E8M0": torch.uint8,  # the exponent byte itself
    "U8": torch.uint8,
    "I8": torch.uint8,  # DeepSeek stores nibble pairs as int8; bytes are bytes
    "F4": torch.uint8,
}


@dataclass(frozen=True)
class _Entry:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Checkpoint:
    """The tensors of one or more safetensors files, by name; nothing is read before it is asked for.

    Raises ValueError on a damaged header or a name that occurs twice, KeyError with near names on an unknown one.
    """

    def __init__(self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> None:
        files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._entries: dict[str, _Entry] = {}
        for file in files:
            for name, entry in _header(Path(file)).items():
                if name in self._entries:
                    raise ValueError(f"{name}: in {self._entries[name].path} and again in {file}")
                self._entries[name] = entry

    def names(self) -> list[str]:
        return sorted(self._entries)

    def tensor(self, name: str) -> torch.Tensor:
        """A copy of one tensor on the CPU. 4-bit types come as uint8 with the last dimension halved."""
        if name not in self._entries:
            near = [n for n in self._entries if n.rsplit(".", 1)[0] == name.rsplit(".", 1)[0]]
            raise KeyError(f"{name}: not in the checkpoint; its module has {near or 'no tensors at all'}")
        entry = self._entries[name]
        if entry.dtype not in _DTYPES:
            raise ValueError(f"{name}: no reader for the type {entry.dtype}")
        shape = entry.shape
        if entry.dtype == "F4" and entry.stop - entry.start != _product(shape):
            shape = (*shape[:-1], shape[-1] // 2)
        dtype = _DTYPES[entry.dtype]
        if _product(shape) * dtype.itemsize != entry.stop - entry.start:
            raise ValueError(f"{name}: {entry.stop - entry.start} bytes do not make {entry.dtype} {entry.shape}")
        if entry.stop == entry.start:
            return torch.empty(shape, dtype=dtype)
        with open(entry.path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as view:
            raw = bytearray(view[entry.start : entry.stop])
        return torch.frombuffer(raw, dtype=dtype).reshape(shape)

    def nvfp4_modules(self) -> dict[str, str]:
        """Module name -> "modelopt" or "compressed-tensors" for each NVFP4 weight."""
        out = {}
        for name in self._entries:
            if name.endswith(".weight_scale_2"):
                out[name.removesuffix(".weight_scale_2")] = "modelopt"
            elif name.endswith(".weight_packed") and self._sibling(name, "weight_packed", "weight_global_scale"):
                out[name.removesuffix(".weight_packed")] = "compressed-tensors"
        return dict(sorted(out.items()))

    def mxfp4_modules(self) -> list[str]:
        """Modules with a 4-bit weight and E8M0 scales for 32 elements (`.scale`)."""
        out = []
        for name, entry in self._entries.items():
            scale = self._entries.get(name.removesuffix(".weight") + ".scale")
            if not name.endswith(".weight") or scale is None or entry.dtype not in ("U8", "I8", "F4"):
                continue
            if scale.dtype in ("F8_E8M0", "U8") and (entry.stop - entry.start) == 16 * (scale.stop - scale.start):
                out.append(name.removesuffix(".weight"))
        return sorted(out)

    def nvfp4(self, module: str) -> Nvfp4Tensor:
        """One NVFP4 weight; of compressed-tensors the reciprocals are turned into the multiplying convention."""
        kind = self.nvfp4_modules().get(module)
        if kind is None:
            raise KeyError(f"{module}: no NVFP4 weight of that name")
        keys = ("weight", "weight_scale", "weight_scale_2", "input_scale")
        if kind == "compressed-tensors":
            keys = ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale")
        found = {k: self.tensor(f"{module}.{k}") for k in keys if f"{module}.{k}" in self._entries}
        missing = [k for k in keys[:3] if k not in found]
        if missing:
            raise ValueError(f"{module}: incomplete {kind} NVFP4 weight, {', '.join(missing)} missing")
        return from_modelopt(found) if kind == "modelopt" else from_compressed_tensors(found)

    def mxfp4_as_nvfp4(self, module: str, *, kmax: int | None = None) -> Nvfp4Tensor:
        """One MXFP4 weight cast without loss, or ValueError where it cannot be (see `mxfp4.cast_mxfp4_to_nvfp4`)."""
        return cast_mxfp4_to_nvfp4(
            self.tensor(f"{module}.weight"), self.tensor(f"{module}.scale").view(torch.uint8), kmax=kmax
        )

    def _sibling(self, name: str, old: str, new: str) -> bool:
        return name.removesuffix(old) + new in self._entries


def _product(shape: tuple[int, ...]) -> int:
    n = 1
    for s in shape:
        n *= s
    return n


def _header(path: Path) -> dict[str, _Entry]:
    """Entries of a file: 8 bytes of header length, a JSON header, then the data (safetensors format, version 0)."""
    size = path.stat().st_size
    with open(path, "rb") as f:
        prefix = f.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > size - 8:
            raise ValueError(f"{path}: not a safetensors file (header of {length} bytes in a file of {size})")
        try:
            header: dict[str, Any] = json.loads(f.read(length))
        except ValueError as error:
            raise ValueError(f"{path}: not a safetensors file (header is not JSON: {error})") from None
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        if not 0 <= start <= stop <= size - 8 - length:
            raise ValueError(f"{path}: {name} lies outside the file (offsets {start}, {stop}); truncated download?")
        out[name] = _Entry(path, entry["dtype"], tuple(entry["shape"]), 8 + length + start, 8 + length + stop)
    return out
