"""Seeded inputs: data regimes, real weights, and the object that makes tensors of them in any world."""

from harness.inputs.draw import Draw
from harness.inputs.regimes import REGIMES, find_regime, regime

__all__ = ["REGIMES", "Draw", "find_regime", "regime"]
