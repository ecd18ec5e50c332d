from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.case import TIERS, WORLDS, Case, grid
from harness.dtypes import DTYPES, itemsize, torch_dtype


def test_id_holds_sizes_dtype_and_regime_in_declaration_order() -> None:
    assert Case((("m", 128), ("k", 7168))).id == "m128-k7168-bf16-normal"
    assert Case((("k", 7168), ("m", 128))).id == "k7168-m128-bf16-normal"


def test_id_appends_source_routing_and_seed_when_there_are_any() -> None:
    case = Case((("m", 8), ("layout", "swizzled")), "fp32", "zeros", "zipf", 3, "/models/a#b.safetensors#layer.0.w")
    assert case.id == "m8-swizzled-fp32-zeros-layer.0.w-zipf-seed3"


def test_id_does_not_depend_on_tier_or_worlds() -> None:
    case = Case((("m", 1),))
    assert case == Case((("m", 1),), tier="full", worlds=("cpu",))
    assert case.id == Case((("m", 1),), tier="full", worlds=("cpu",)).id


def test_size_is_read_by_name_and_an_unknown_name_lists_the_known_ones() -> None:
    case = Case((("m", 128), ("k", 64)))
    assert case["k"] == 64
    with pytest.raises(KeyError, match=r"m128-k64-bf16-normal has no parameter 'n'; it has: m, k"):
        case["n"]


def test_replace_keeps_everything_but_the_named_sizes() -> None:
    case = Case((("m", 128), ("k", 64)), "fp16", "zeros", "uniform", 2, None, "full", ("cpu",))
    smaller = case.replace(m=1)
    assert smaller.params == (("m", 1), ("k", 64))
    assert smaller.as_dict() == {**case.as_dict(), "params": smaller.as_dict()["params"]}
    with pytest.raises(KeyError, match="has no parameters"):
        case.replace(n=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "bfloat16"}, "unknown dtype 'bfloat16'; expected one of fp64"),
        ({"tier": "nightly"}, "unknown tier 'nightly'; expected one of quick, full"),
        ({"worlds": ("cpu", "tpu")}, r"unknown worlds \['tpu'\]; expected some of cpu"),
    ],
)
def test_unknown_dtype_tier_and_world_are_refused_with_the_known_ones(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case((("m", 1),), **fields)  # type: ignore[arg-type]


@given(
    params=st.lists(
        st.tuples(st.text("abkmn", min_size=1, max_size=3), st.one_of(st.integers(0, 1 << 40), st.text(max_size=5))),
        max_size=4,
        unique_by=lambda pair: pair[0],
    ),
    dtype=st.sampled_from(sorted(DTYPES)),
    routing=st.one_of(st.none(), st.text(max_size=6)),
    seed=st.integers(0, 9),
    source=st.one_of(st.none(), st.text(max_size=9)),
    tier=st.sampled_from(TIERS),
    worlds=st.lists(st.sampled_from(WORLDS), unique=True).map(tuple),
)
def test_a_round_through_json_keeps_the_case_and_its_id(params: list[tuple[str, int | str]], **fields: object) -> None:
    case = Case(tuple(params), regime="normal", **fields)  # type: ignore[arg-type]
    again = Case.from_dict(json.loads(json.dumps(case.as_dict())))
    assert again == case
    assert (again.id, again.tier, again.worlds) == (case.id, case.tier, case.worlds)
    assert hash(again) == hash(case)


def test_grid_is_the_cross_product_of_its_axes_first_axis_slowest() -> None:
    cases = grid(m=[1, 2], k=64, dtype=["bf16", "fp32"], regime=["normal", "zeros"], seed=[0, 1], routing="one-hot")
    assert len(cases) == 16
    assert [case.id for case in cases[:3]] == [
        "m1-k64-bf16-normal-one-hot",
        "m1-k64-bf16-normal-one-hot-seed1",
        "m1-k64-bf16-zeros-one-hot",
    ]
    assert len({case.id for case in cases}) == 16


def test_grid_takes_ranges_and_generators_on_every_axis() -> None:
    ordinary = grid(m=[1, 2, 3], k=[16, 32], dtype=["bf16", "fp32"])
    lazy = grid(m=range(1, 4), k=(k for k in (16, 32)), dtype=(d for d in ("bf16", "fp32")))  # type: ignore[arg-type]
    assert lazy == ordinary


def test_grid_hands_tier_and_worlds_to_every_case() -> None:
    assert all(c.tier == "full" and c.worlds == ("cuda",) for c in grid(m=[1, 2], tier="full", worlds=["cuda"]))


def test_every_short_dtype_name_has_its_size() -> None:
    assert {name: itemsize(name) for name in ("fp64", "bf16", "e4m3", "i32", "bool")} == {
        "fp64": 8,
        "bf16": 2,
        "e4m3": 1,
        "i32": 4,
        "bool": 1,
    }
    assert Case((("m", 1),), "e5m2").itemsize == 1
    assert all(torch_dtype(name) is dtype for name, dtype in DTYPES.items())
