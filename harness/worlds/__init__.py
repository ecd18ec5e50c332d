"""Worlds: where a trial runs. A gate asks the same questions of each; one answers by measuring, one by predicting."""

from __future__ import annotations

from harness.worlds.base import CaptureAnswer, MemoryAnswer, World
from harness.worlds.cpu import CpuWorld
from harness.worlds.cuda import CudaWorld
from harness.worlds.fake import FakeCudaWorld

__all__ = ["WORLD_CLASSES", "CaptureAnswer", "MemoryAnswer", "World", "make_world"]

WORLD_CLASSES: dict[str, type[World]] = {
    CpuWorld.name: CpuWorld,
    FakeCudaWorld.name: FakeCudaWorld,
    CudaWorld.name: CudaWorld,
}


def make_world(name: str) -> World:
    """The world of this name; ValueError that lists the known ones otherwise."""
    try:
        return WORLD_CLASSES[name]()
    except KeyError:
        raise ValueError(f"unknown world {name!r}; expected one of {', '.join(WORLD_CLASSES)}") from None
