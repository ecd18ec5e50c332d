"""What the compiler made of the kernels, checked without a GPU: each of these broke, or nearly broke, a kernel
once.
"""

import functools

import pytest

pytest.importorskip("cutlass", reason="needs the CuTe DSL (nvidia-cutlass-dsl)")

from kernels.sm90 import gemm, moe, quantize
from kernels.tests.sm90 import codegen

GEMMS = [(tile, epilogue) for tile in gemm.TILES for epilogue in ("plain", "swiglu")]


@functools.cache
def gemm_facts(tile: str, epilogue: str) -> codegen.Facts:
    return codegen.facts(gemm.gemm_spec(tile, epilogue))


@pytest.mark.parametrize(("tile", "epilogue"), GEMMS)
def test_gemm(tile: str, epilogue: str) -> None:
    f, c = gemm_facts(tile, epilogue), gemm.config(tile)
    assert f.stack_bytes == 0
    assert f.count("STL") + f.count("LDL") == 0
    assert 0 < f.dynamic_smem <= codegen.SMEM_LIMIT
    assert f.threads == c.threads
    # A wgmma for each k16 step of a block, slab of a warpgroup and token width; no other matrix instruction.
    assert f.count("HGMMA") == 8 * c.slabs_per_warpgroup * len(c.token_widths)
    assert f.count("HMMA") == 0
    assert not f.serialized_wgmma  # ptxas C7512
    assert f.count("UTMALDG") > 0  # tokens
    assert f.count("UBLKCP") > 0  # weights
    # setmaxnreg redistributes what the launch allocated; a larger demand waits for ever.
    assert f.setmaxnreg == c.registers
    assert 128 * c.registers[0] + c.consumers * c.registers[1] <= f.registers * f.threads


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("layout", ["linear", "swizzled"])
def test_quantizer(dtype: str, layout: str) -> None:
    f = codegen.facts(quantize.quantize_spec(dtype, scale_layout=layout))
    assert f.stack_bytes == 0
    assert f.registers <= 72  # seven blocks of 128 threads a multiprocessor: quantize._resident_blocks
    assert f.count("LDG.E.128") == 2 * (4 if dtype == "fp32" else 2)  # 16-byte loads only: this block and the next
    assert f.opcodes["STG.E.64"] == 1


@pytest.mark.parametrize(
    "spec", [moe.route_spec(32, True), moe.gather_spec(), moe.combine_spec()], ids=lambda s: s.name
)
def test_layer_kernels(spec) -> None:
    f = codegen.facts(spec)
    assert f.stack_bytes == 0
    assert f.dynamic_smem <= codegen.SMEM_LIMIT


def test_a_layer_is_few_kernels() -> None:
    """At most 8 GEMM kernels for M from 1 to 16384 and any routing."""
    for tokens in (1, 2, 7, 64, 128, 1000, 16384):
        for experts in (1, 32, 48, 384):
            assert gemm.choose(tokens * 6, experts) in gemm.TILES
    assert len([s for s in moe.layer_specs() if s.name == "nvfp4_grouped_gemm"]) == 6
