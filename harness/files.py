"""Files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path | str, data: bytes) -> None:
    """Write a whole file or nothing: to a temporary name beside it, then renamed over it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
