from __future__ import annotations

import pytest
import torch

from harness.trial import bits, check_same, clone, first_difference, overwrite, same_bits
from harness.verdict import Findings

LAYOUTS = {
    "contiguous": torch.randn(4, 6),
    "transposed": torch.randn(6, 4).t(),
    "sliced": torch.randn(4, 9)[:, 2:8],
    "expanded": torch.randn(6).expand(4, 6),
    "offset": torch.randn(25)[1:].view(4, 6),
    "one element, stride 2": torch.randn(1, 2)[:, ::2],
    "scalar": torch.tensor(2.0),
    "empty": torch.empty(0, 6),
    "codes": torch.arange(24, dtype=torch.uint8).view(4, 6),
    "fp8": torch.randn(4, 6).to(torch.float8_e4m3fn),
    "bool": torch.tensor([[True, False]]),
}


@pytest.mark.parametrize("value", LAYOUTS.values(), ids=LAYOUTS)
def test_a_clone_has_the_same_bits_and_strides_and_memory_of_its_own(value: torch.Tensor) -> None:
    copy = clone({"x": [value], "plain": 3})
    assert copy["plain"] == 3
    assert same_bits(copy["x"][0], value)
    assert value.numel() < 2 or copy["x"][0].stride() == value.stride()
    if value.numel():
        assert copy["x"][0].untyped_storage().data_ptr() != value.untyped_storage().data_ptr()


@pytest.mark.parametrize("value", LAYOUTS.values(), ids=LAYOUTS)
def test_bits_are_the_bytes_of_the_elements_in_order(value: torch.Tensor) -> None:
    plain = torch.empty(value.numel(), dtype=value.dtype).copy_(value.reshape(-1))
    assert bits(value).tolist() == plain.view(torch.uint8).tolist()
    assert same_bits(value, value.clone())


def test_bits_tell_zeros_nans_dtypes_and_shapes_apart() -> None:
    nans = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(nans[:1], nans[1:])
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert not same_bits(torch.zeros(2, 1), torch.zeros(2))


def test_overwrite_keeps_addresses_and_brings_new_values() -> None:
    target, source = {"x": torch.zeros(3), "k": 1}, {"x": torch.ones(3), "k": 1}
    address = target["x"].data_ptr()  # type: ignore[union-attr]
    overwrite(target, source)
    assert target["x"].tolist() == [1, 1, 1]  # type: ignore[union-attr]
    assert target["x"].data_ptr() == address  # type: ignore[union-attr]


def test_the_first_difference_is_told_in_words() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(2, 3)
    b[1, 2] = 5
    assert first_difference(a, b).startswith("1 of 6 elements differ in their bytes")
    assert "[1, 2]" in first_difference(a, b)
    assert first_difference(a, a[:1]) == "(2, 3) float32 against (1, 3) float32"


def test_check_same_counts_every_output_and_names_the_one_that_differs() -> None:
    findings = Findings()
    zeros, ones = torch.zeros(2), torch.ones(2)
    check_same({"a": zeros, "b": ones}, {"a": zeros.clone(), "b": zeros.clone()}, findings, "again: ")
    verdict = findings.verdict()
    assert verdict.figure("checks") == 2
    assert verdict.reason == "again: b has other bits"
