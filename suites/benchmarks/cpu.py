"""Wall-clock benchmarks of the CPU world, to try the benchmarks without a GPU, and for code that runs on a CPU."""

from __future__ import annotations

from .generate import benchmark_classes

globals().update(benchmark_classes("cpu", method="time_wall"))
