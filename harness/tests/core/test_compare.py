from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness import compare as compare_module
from harness.compare import TILE, Comparison, compare, would_pass
from harness.suite import Bounded, Tolerance

LOOSE = Tolerance(rtol=1e-2, atol=1e-3)
BITWISE = Tolerance.bitwise()


def planted(shape: tuple[int, ...], *places: tuple[int, ...], by: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """(found, expected): equal but at ``places``."""
    expected = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = expected.clone()
    for place in places:
        found[place] += by
    return found, expected


def test_equal_tensors_pass_and_nothing_of_the_bound_is_used() -> None:
    result = compare(*planted((3, 5)), LOOSE)
    assert result.ok
    assert result.total == 15
    assert result.figures["bound_used_max"] == result.figures["abs_max"] == result.figures["mismatches"] == 0


def test_the_bound_is_atol_plus_rtol_times_expected_and_its_edge_passes() -> None:
    expected = torch.tensor([0.0, 100.0], dtype=torch.float64)
    tolerance = Tolerance(rtol=0.25, atol=0.5)
    assert compare(expected + torch.tensor([0.5, 25.5]), expected, tolerance).ok
    assert not compare(expected + torch.tensor([0.5001, 0.0]), expected, tolerance).ok
    assert not compare(expected + torch.tensor([0.0, 25.5001]), expected, tolerance).ok


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tolerance", [LOOSE, Tolerance(rtol=math.inf, atol=math.inf), BITWISE])
def test_nan_and_inf_pass_exactly_where_the_reference_has_the_same(special: float, tolerance: Tolerance) -> None:
    plain = torch.ones(4, 4, dtype=torch.float64)
    odd = plain.clone()
    odd[1, 2] = special
    assert compare(odd, odd.clone(), tolerance).ok
    for found, expected in ((odd, plain), (plain, odd)):
        result = compare(found, expected, tolerance)
        assert not result.ok
        assert "[1, 2]" in result.where
    if not math.isnan(special):
        assert not compare(odd, -odd, tolerance).ok, "the infinity of the other sign"


def test_a_nan_bound_cannot_pass() -> None:
    value = torch.ones(2, 2)
    bound = torch.tensor([[1.0, math.nan], [1.0, 1.0]])
    assert not compare(value, Bounded(value, bound), LOOSE).ok
    assert not compare(value, value, Tolerance(rtol=math.nan)).ok


def test_a_bound_for_every_element_stands_in_place_of_the_tolerance() -> None:
    found, expected = planted((2, 2), (0, 1), by=0.5)
    bound = torch.zeros(2, 2, dtype=torch.float64)
    assert not compare(found, Bounded(expected, bound), Tolerance(rtol=9)).ok
    bound[0, 1] = 0.5
    assert compare(found, Bounded(expected, bound), Tolerance()).ok


def test_the_worst_element_is_the_one_furthest_beyond_its_own_bound() -> None:
    expected = torch.tensor([1.0, 1000.0])
    found = torch.tensor([1.5, 1100.0])  # 0.5 over a bound of 0.01, 100 over a bound of 10
    result = compare(found, expected, Tolerance(rtol=0.01))
    assert result.where.startswith("worst at [0]")
    assert (result.expected, result.found) == ("1 +- 0.01", "1.5 (error 0.5)")
    assert result.mismatches == 2


def test_one_wrong_tile_is_named_with_its_rows_and_columns() -> None:
    found, expected = planted((3 * TILE, 4 * TILE))
    found[TILE : 2 * TILE, 2 * TILE : 3 * TILE] += 1
    result = compare(found, expected, LOOSE)
    assert "(tile 1, 2)" in result.where
    assert "128 of 384 rows (128..255), 128 of 512 columns (256..383), 1 x 1 tiles" in result.where
    assert result.mismatches == TILE * TILE


def test_a_wrong_expert_is_named_by_its_leading_index() -> None:
    found, expected = planted((6, 4, 4))
    found[4] += 1
    assert "leading indices [4]" in compare(found, expected, LOOSE).where


def test_rows_catch_many_small_errors_that_every_element_allows() -> None:
    expected = torch.ones(4, 100)
    found = expected.clone()
    found[2] += 0.009
    assert compare(found, expected, LOOSE).ok
    result = compare(found, expected, Tolerance(rtol=1e-2, row_rtol=5e-3))
    assert not result.ok
    assert result.reason == "a row's relative error is too large"
    assert "row [2]" in result.where


def test_an_error_in_a_zero_row_is_infinitely_large_and_no_error_there_is_none() -> None:
    expected = torch.zeros(3, 8)
    found = expected.clone()
    assert compare(found, expected, Tolerance(atol=1, row_rtol=0.5)).ok
    found[1, 1] = 0.1
    assert not compare(found, expected, Tolerance(atol=1, row_rtol=0.5)).ok


def test_row_errors_survive_magnitudes_whose_squares_overflow_or_vanish() -> None:
    for scale in (1e200, 1e-200):
        expected = torch.full((2, 64), scale, dtype=torch.float64)
        assert compare(expected * 1.001, expected, Tolerance(rtol=1, row_rtol=0.002)).ok
        assert not compare(expected * 1.001, expected, Tolerance(rtol=1, row_rtol=0.0005)).ok


def test_shapes_must_agree_even_where_they_would_broadcast() -> None:
    result = compare(torch.zeros(3, 1), torch.zeros(3, 3), LOOSE)
    assert (result.ok, result.reason, result.expected, result.found) == (False, "wrong shape", "(3, 3)", "(3, 1)")


@pytest.mark.parametrize("tolerance", [LOOSE, BITWISE])
@pytest.mark.parametrize("shape", [(0,), (0, 16), (4, 0)])
def test_empty_outputs_pass(shape: tuple[int, ...], tolerance: Tolerance) -> None:
    assert compare(torch.zeros(shape), torch.zeros(shape), tolerance).ok


@pytest.mark.parametrize("tolerance", [LOOSE, BITWISE])
def test_a_scalar_output_is_compared_and_located(tolerance: Tolerance) -> None:
    assert compare(torch.tensor(1.0), torch.tensor(1.0), tolerance).ok
    result = compare(torch.tensor(2.0), torch.tensor(1.0), tolerance)
    assert not result.ok
    assert "at []" in result.where


def test_bytes_tell_the_signs_of_zero_apart() -> None:
    assert not compare(torch.tensor([0.0]), torch.tensor([-0.0]), BITWISE).ok


def test_any_nan_stands_for_any_other_but_in_8_bit_floats_whose_bytes_are_data() -> None:
    one, other = torch.tensor([0x7FC00000, -0x003FFFFF], dtype=torch.int32).view(torch.float32)
    assert compare(one, other, BITWISE).ok
    assert not compare(one, torch.tensor(1.0), BITWISE).ok
    assert not compare(torch.tensor(1.0), one, BITWISE).ok
    positive, negative = torch.tensor([0x7F, 0xFF], dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert not compare(positive, negative, BITWISE).ok


def test_bytes_need_the_dtype_of_the_reference() -> None:
    result = compare(torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16), BITWISE)
    assert (result.reason, result.expected, result.found) == ("wrong dtype", "torch.bfloat16", "torch.float32")


def test_bytes_of_codes_and_of_8_bit_floats_are_shown_in_hexadecimal() -> None:
    codes = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)
    wrong = codes.clone()
    wrong[1, 0] = 0xFE
    result = compare(wrong, codes, BITWISE)
    assert (result.expected, result.found) == ("0x03", "0xfe")
    assert result.reason == "1 of 4 elements differ in their bytes (25.000%)"
    result = compare(wrong.view(torch.float8_e4m3fn), codes.view(torch.float8_e4m3fn), BITWISE)
    assert "(byte 0x03)" in result.expected
    assert "(byte 0xfe)" in result.found


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float8_e5m2, torch.bfloat16, torch.float64])
def test_bytes_of_every_dtype_and_stride_are_compared(dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1, 0], [1, 0, 1]]).to(dtype)
    assert compare(values.t(), values.t().contiguous(), BITWISE).ok
    other = values.clone()
    other[1, 2] = torch.zeros((), dtype=dtype)
    result = compare(other.t(), values.t(), BITWISE)
    assert "first at [2, 1]" in result.where


def test_figures_say_how_much_of_the_bound_is_used() -> None:
    expected = torch.ones(1000, dtype=torch.float64)
    found = expected.clone()
    found[0] += 0.5
    figures = compare(found, expected, Tolerance(atol=1.0)).figures
    assert figures["bound_used_max"] == pytest.approx(0.5)
    assert figures["bound_used_p50"] == 0
    assert (figures["abs_max"], figures["rel_max"]) == (pytest.approx(0.5), pytest.approx(0.5))


def test_zero_tolerance_on_equal_values_passes_and_on_others_does_not() -> None:
    found, expected = planted((4, 4))
    assert compare(found, expected, Tolerance()).ok
    found[0, 0] = math.nextafter(float(found[0, 0]), math.inf)
    assert not compare(found, expected, Tolerance()).ok


@pytest.mark.parametrize("row", [0, 5, 99])
@pytest.mark.parametrize("bounded", [False, True])
def test_a_whole_output_passes_only_if_its_last_rows_do_too(
    monkeypatch: pytest.MonkeyPatch, row: int, bounded: bool
) -> None:
    monkeypatch.setattr(compare_module, "_SAMPLE", 16)
    found, expected = planted((100, 4))
    wanted = Bounded(expected, torch.full_like(expected, 1e-3)) if bounded else expected
    assert would_pass(found, wanted, LOOSE)
    found[row] += 1
    assert not would_pass(found, wanted, LOOSE)


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    rtol=st.floats(0, 1),
    atol=st.floats(0, 1),
    seed=st.integers(0, 1000),
    special=st.sampled_from([None, math.nan, math.inf]),
)
def test_the_verdict_is_that_of_the_elementwise_definition(
    shape: list[int], rtol: float, atol: float, seed: int, special: float | None
) -> None:
    generator = torch.Generator().manual_seed(seed)
    expected = torch.randn(shape, generator=generator, dtype=torch.float64)
    found = expected + torch.randn(shape, generator=generator, dtype=torch.float64) * (atol + rtol)
    if special is not None and seed % 2:
        found.view(-1)[seed % found.numel()] = special
    pairs = list(zip(found.flatten().tolist(), expected.flatten().tolist(), strict=True))
    good = [abs(f - e) <= atol + rtol * abs(e) for f, e in pairs]
    result = compare(found, expected, Tolerance(rtol, atol))
    assert result.ok == all(good)
    if special is None and not result.ok:
        assert result.mismatches == good.count(False)


@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=3), data=st.data())
def test_one_flipped_bit_anywhere_is_found_where_it_is(shape: list[int], data: st.DataObject) -> None:
    expected = torch.arange(math.prod(shape), dtype=torch.int32).view(shape)
    index = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    found = expected.clone()
    found[index] ^= 1 << data.draw(st.integers(0, 30))
    result: Comparison = compare(found, expected, BITWISE)
    assert not result.ok
    assert result.mismatches == 1
    assert result.where.startswith(f"first at [{', '.join(map(str, index))}]")
