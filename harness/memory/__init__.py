"""Peak memory of a call: a model of torch's CUDA caching allocator, and a tracker that feeds it.

docs/memory.md compares its figures with those measured on a GPU.
"""

from harness.memory.allocator import CachingAllocator
from harness.memory.tracker import Alive, PeakReport, PeakTracker

__all__ = ["Alive", "CachingAllocator", "PeakReport", "PeakTracker"]
