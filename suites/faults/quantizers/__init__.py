"""Quantisers that are wrong in the ways of the public log. Each must FAIL the gate that is named with it.

They have the signature of the function that they stand in for (`REPLACES`) and, but for their one fault, its results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from suites.faults.quantizers.clamp_1e8_no_zero_handling import clamp_1e8_no_zero_handling
from suites.faults.quantizers.distance_8way import distance_8way
from suites.faults.quantizers.half_step_table_13 import half_step_table_13
from suites.faults.quantizers.lock_in_call import lock_in_call
from suites.faults.quantizers.n_doubled import n_doubled
from suites.faults.quantizers.random_bytes_as_scale import random_bytes_as_scale
from suites.faults.quantizers.table_by_new_tensor import table_by_new_tensor
from suites.faults.quantizers.table_by_torch_tensor import table_by_torch_tensor
from suites.faults.quantizers.weight_packs_wrong_axis import weight_packs_wrong_axis
from suites.faults.quantizers.zero_threshold_2e_9 import zero_threshold_2e_9

WRONG_QUANTIZERS: list[tuple[str, Callable[..., Any], str]] = [
    ("half_step_table_13", half_step_table_13, "correctness"),
    ("distance_8way", distance_8way, "memory"),
    ("table_by_torch_tensor", table_by_torch_tensor, "capture"),
    ("table_by_new_tensor", table_by_new_tensor, "capture"),
    ("lock_in_call", lock_in_call, "recompile"),
    ("weight_packs_wrong_axis", weight_packs_wrong_axis, "correctness"),
    ("clamp_1e8_no_zero_handling", clamp_1e8_no_zero_handling, "correctness"),
    ("zero_threshold_2e_9", zero_threshold_2e_9, "correctness"),
    ("n_doubled", n_doubled, "correctness"),
    ("random_bytes_as_scale", random_bytes_as_scale, "correctness"),
]
"(name, function, the gate that must fail it)."

REPLACES: dict[str, str] = {
    name: "quantize_weight_to_nvfp4" if function is weight_packs_wrong_axis else "quantize_activation_nvfp4"
    for name, function, _ in WRONG_QUANTIZERS
}
"The public function of kernels.nvfp4 that each one stands in for."
