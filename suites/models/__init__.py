"""DeepSeek-V4-Pro, V4-Flash and V4.1-Flash as data, and every shape of theirs derived from it.

Pure standard library. Three steps: ``MODELS`` holds what config.json says; ``linears``, ``expert_gemms``,
``activation_shapes`` and ``sparse_layout`` derive the shapes of one rank; ``TOKENS``, ``ODD_SHAPES`` and
``unique_weight_shapes`` are what suites build their cases from. Every shape has a readable ``id``
(``v4-pro.tp4.wq_b``). ``python -m suites.models`` prints them; docs/shapes.md is made by its ``--markdown``.
"""

from suites.models.activations import ActivationShape, activation_shapes
from suites.models.config import C4A, C128A, SWA_ONLY, ModelConfig
from suites.models.deepseek import MODELS, V4_1_FLASH, V4_FLASH, V4_FLASH_0731, V4_PRO, get_model
from suites.models.experts import (
    EP,
    ExpertGemm,
    expected_experts_hit,
    expert_gemms,
    experts_per_rank,
    routed_rows,
)
from suites.models.ladder import ODD_SHAPES, ODD_TOKENS, ODD_WEIGHTS, TOKENS, OddShape, OddWeight
from suites.models.linears import TP, LinearShape, Sharding, linears
from suites.models.quoted import QUOTED_FIGURES, QuotedFigure
from suites.models.sparse import (
    SparseLayout,
    c128a_width,
    compressed_entries,
    slots_per_page,
    sparse_layout,
)
from suites.models.storage import WeightShape
from suites.models.weights import unique_weight_shapes

__all__ = [
    "C4A",
    "C128A",
    "EP",
    "MODELS",
    "ODD_SHAPES",
    "ODD_TOKENS",
    "ODD_WEIGHTS",
    "QUOTED_FIGURES",
    "SWA_ONLY",
    "TOKENS",
    "TP",
    "V4_1_FLASH",
    "V4_FLASH",
    "V4_FLASH_0731",
    "V4_PRO",
    "ActivationShape",
    "ExpertGemm",
    "LinearShape",
    "ModelConfig",
    "OddShape",
    "OddWeight",
    "QuotedFigure",
    "Sharding",
    "SparseLayout",
    "WeightShape",
    "activation_shapes",
    "c128a_width",
    "compressed_entries",
    "expected_experts_hit",
    "expert_gemms",
    "experts_per_rank",
    "get_model",
    "linears",
    "routed_rows",
    "slots_per_page",
    "sparse_layout",
    "unique_weight_shapes",
]
