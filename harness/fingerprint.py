"""What a result was measured with: machine, driver, libraries and the commit under test."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

_PACKAGES = (
    "kernel-harness",
    "torch",
    "triton",
    "nvidia-cutlass-dsl",
    "apache-tvm-ffi",
    "cuda-core",
    "cuda-bindings",
)


@cache
def fingerprint() -> dict[str, Any]:
    """Machine and software as a flat JSON-able mapping; figures that cannot be read are left out, not invented."""
    found: dict[str, Any] = {
        "os": platform.system(),
        "arch": platform.machine(),
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        **{f"package:{name}": version for name in _PACKAGES if (version := _version(name))},
        **_gpu(),
        **_commit(Path.cwd()),
    }
    return {key: value for key, value in found.items() if value is not None}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _gpu() -> dict[str, Any]:
    """Name, driver, memory and power cap of the current CUDA device, matched to NVML by UUID, never by index."""
    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    found: dict[str, Any] = {
        "gpu": properties.name,
        "gpu_capability": f"{properties.major}.{properties.minor}",
        "gpu_sm_count": properties.multi_processor_count,
        "gpu_memory": properties.total_memory,
        "gpu_l2": properties.L2_cache_size,
    }
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
        found["driver"] = pynvml.nvmlSystemGetDriverVersion()
        found["gpu_power_limit_w"] = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    except Exception:  # NVML is absent in some containers; the rest of the fingerprint still stands
        found.setdefault("driver", None)
    return found


def _commit(folder: Path) -> dict[str, Any]:
    def git(*args: str) -> str | None:
        try:
            run = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return run.stdout.strip() if run.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit:
        return {}
    return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
