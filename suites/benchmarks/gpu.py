"""Device-time benchmarks of the CUDA world; skipped, with the reason, on a machine without a GPU."""

from __future__ import annotations

from .generate import benchmark_classes

globals().update(benchmark_classes("cuda", method="time_gpu"))
