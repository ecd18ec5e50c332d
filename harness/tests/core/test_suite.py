from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import harness
from harness.case import grid
from harness.suite import Contract, Implementation, Tolerance
from harness.tests.planted import CASE, correct, make_suite


def test_a_suite_without_implementations_is_refused() -> None:
    with pytest.raises(ValueError, match="'planted' has no implementations"):
        make_suite(correct, implementations={})


def test_a_case_declared_twice_is_refused_by_its_id() -> None:
    with pytest.raises(ValueError, match=f"declares cases twice: {CASE.id}"):
        make_suite(correct, cases=[CASE, *grid(m=[1, 2], k=24, dtype="fp32"), CASE])


def test_cases_given_as_a_generator_are_still_there_the_second_time() -> None:
    suite = make_suite(correct, cases=(case for case in [CASE]))
    assert list(suite.cases) == [CASE]
    assert list(suite.cases) == [CASE]


def test_tolerances_by_output_must_name_the_outputs() -> None:
    with pytest.raises(ValueError, match="tolerances for values, its outputs are out"):
        make_suite(correct, tolerance={"values": Tolerance()})


def test_tolerance_is_found_by_output_and_is_bitwise_by_default() -> None:
    suite = make_suite(correct, outputs=("a", "b"), tolerance={"a": Tolerance(rtol=1), "b": Tolerance.bitwise()})
    assert suite.tolerance_of("a").rtol == 1
    assert suite.tolerance_of("b").exact
    default = harness.Suite("s", suite.inputs, suite.reference, suite.implementations, [CASE])
    assert default.tolerance_of("out").exact


def test_contract_of_an_implementation_stands_before_that_of_the_suite() -> None:
    own = Contract(deterministic=False)
    both = {"own": Implementation(correct, contract=own), "plain": Implementation(correct)}
    suite = make_suite(correct, implementations=both, contract=Contract(rows=("x",)))
    assert suite.contract_of("own") is own
    assert suite.contract_of("plain").rows == ("x",)


def test_outputs_are_named_in_order_and_a_wrong_count_is_an_error() -> None:
    a, b = torch.zeros(1), torch.ones(1)
    suite = make_suite(correct, outputs=("a", "b"))
    assert list(suite.named_outputs([a, b])) == ["a", "b"]
    assert suite.named_outputs((a, b))["b"] is b
    with pytest.raises(ValueError, match=r"expected 2 outputs \('a', 'b'\), got 1"):
        suite.named_outputs(a)


def test_every_public_name_is_there_and_an_unknown_one_is_an_attribute_error() -> None:
    assert all(getattr(harness, name) is not None for name in harness.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        harness.nothing  # noqa: B018


def test_importing_the_package_or_its_pytest_plugin_does_not_import_torch() -> None:
    code = "import sys, harness, harness.pytest_plugin; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
