"""Deliberately wrong kernels: each must fail the gate that is named with it."""
