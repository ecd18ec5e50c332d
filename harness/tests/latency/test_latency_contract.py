"""The timing contract: one hash for one way of measuring, and no comparison across two."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from harness.latency.contract import ContractMismatch, TimingContract, differences, require_same

BASE = TimingContract("graph-replay", warmup_s=0.5, min_calls=30, min_time_s=0.1, rotation_l2=3, graph_calls=20)


def test_the_hash_is_the_same_everywhere() -> None:
    # stored baselines carry it: it may only change together with `revision` or a field
    assert BASE.digest == "59151e452233e7c15f833dc401bc574be730cc09a7fc7a8fa85b1534ba0ccbd3"
    assert BASE.version == BASE.digest[:16]


def test_equal_values_are_equal_contracts() -> None:
    assert replace(BASE, rotation_l2=3.0).digest == replace(BASE, rotation_l2=3).digest


@pytest.mark.parametrize("name", [field.name for field in fields(TimingContract)])
def test_every_field_is_in_the_hash(name: str) -> None:
    value = getattr(BASE, name)
    other = replace(BASE, **{name: value + "x" if isinstance(value, str) else value + 1})
    assert other.digest != BASE.digest
    assert len(differences(BASE, other)) == 1
    with pytest.raises(ContractMismatch, match=f"{name}: .* against .*; measure one side again"):
        require_same(BASE, other)
    require_same(BASE, replace(BASE))


def test_nan_has_no_hash() -> None:
    with pytest.raises(ValueError):
        _ = replace(BASE, warmup_s=float("nan")).digest
