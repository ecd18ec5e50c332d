"""Real tensors on the CPU: values, coverage, guards, arguments and determinism without a GPU."""

from __future__ import annotations

from typing import ClassVar

from harness.worlds.base import World


class CpuWorld(World):
    name: ClassVar[str] = "cpu"
    device: ClassVar[str] = "cpu"
