"""A machine as asv files it, with what decides a GPU timing added: GPU, driver, power limit, CUDA, torch, DSL."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from harness.asv.stored import MACHINE_VERSION
from harness.files import write_atomically
from harness.fingerprint import fingerprint

MACHINE_FILE = Path("~/.asv-machine.json")
"""Where asv looks for the machine it runs on."""

_KEYS = {
    "gpu": "gpu",
    "gpu_sm_count": "gpu_sm_count",
    "gpu_power_limit_w": "gpu_power_limit_w",
    "driver": "driver",
    "torch": "torch",
    "torch_cuda": "cuda",
    "package:nvidia-cutlass-dsl": "cutlass_dsl",
    "package:triton": "triton",
}


def describe(name: str | None = None, clocks: str = "default") -> dict[str, str]:
    """This machine as a flat mapping of texts, named after its GPU (or CPU) unless ``name`` is given.

    ``clocks`` is the clock mode of the device (``default`` or ``locked``), which no library reports.
    """
    found = fingerprint()
    described = {
        "machine": name or slug(found.get("gpu") or f"cpu-{found.get('cpu', found['arch'])}"),
        "os": str(found["os"]),
        "arch": str(found["arch"]),
        "cpu": str(found.get("cpu", "")),
        "num_cpu": str(found.get("cpu_count", "")),
        "ram": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "clocks": clocks,
    }
    return described | {ours: str(found[key]) for key, ours in _KEYS.items() if key in found}


def register_machine(described: dict[str, str], path: Path = MACHINE_FILE) -> Path:
    """Enter the machine in asv's list of machines; ``asv run --machine NAME`` then files it with every result."""
    path = path.expanduser()
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"version": MACHINE_VERSION}
    known[described["machine"]] = described
    write_atomically(path, (json.dumps(known, indent=4, sort_keys=True) + "\n").encode())
    return path


def slug(text: str) -> str:
    """``NVIDIA H200`` as ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
