from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from harness.case import Case, grid
from harness.gates import GATES
from harness.plan import Plan, Selection, Task, make_plan
from harness.registry import Registered
from harness.suite import Implementation
from harness.tests.planted import correct, make_suite
from harness.worlds import WORLD_CLASSES

PATH = Path(__file__)


def plan_of(selection: Selection | None = None, **fields: Any) -> Plan:
    return make_plan([Registered(make_suite(correct, **fields), PATH)], selection or Selection())


def keys(plan: Plan, *names: str) -> set[tuple[Any, ...]]:
    return {tuple(getattr(task, name) for name in names) for task in plan.tasks}


ONLY_CPU = Selection(worlds=("cpu",))


def test_without_a_selection_everything_that_can_be_judged_here_is_in_the_plan() -> None:
    plan = plan_of()
    here = {name for name, world in WORLD_CLASSES.items() if world().unavailable() is None}
    assert {world for (world,) in keys(plan, "world")} == here
    judged_on_cpu = {task.gate for task in plan.tasks if task.world == "cpu"}
    assert judged_on_cpu == {name for name, gate in GATES.items() if "cpu" in gate.worlds}
    assert plan.unavailable == {}, "a world that nobody named is left out silently"


def test_full_cases_run_in_the_full_tier_only() -> None:
    cases = grid(m=1, k=8, dtype="fp32") + grid(m=2, k=8, dtype="fp32", tier="full")
    assert {task.case["m"] for task in plan_of(ONLY_CPU, cases=cases).tasks} == {1}
    everything = Selection(worlds=("cpu",), tier="full")
    assert {task.case["m"] for task in plan_of(everything, cases=cases).tasks} == {1, 2}


def test_cases_and_implementations_run_only_in_their_worlds() -> None:
    cases = grid(m=1, k=8, dtype="fp32", worlds=["cuda"]) + grid(m=2, k=8, dtype="fp32", worlds=["cpu"])
    assert {task.case["m"] for task in plan_of(ONLY_CPU, cases=cases).tasks} == {2}
    implementations = {"kernel": Implementation(correct, worlds=("cuda",)), "host": Implementation(correct)}
    assert keys(plan_of(ONLY_CPU, implementations=implementations), "implementation") == {("host",)}


def test_an_implementation_that_cannot_run_here_is_told_with_its_reason() -> None:
    needy = Implementation(correct, requires=lambda: "needs nvcc")
    implementations = {"kernel": needy, "host": Implementation(correct)}
    plan = plan_of(ONLY_CPU, implementations=implementations)
    assert plan.not_here == {"planted/kernel": "needs nvcc"}
    assert keys(plan, "implementation") == {("host",)}


def test_a_world_asked_for_and_not_there_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WORLD_CLASSES["cuda"], "unavailable", lambda self: "no CUDA device")
    plan = plan_of(Selection(worlds=("cuda", "cpu")))
    assert plan.unavailable == {"cuda": "no CUDA device"}
    assert keys(plan, "world") == {("cpu",)}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"cases": ("m1-*",)}, {1}),
        ({"cases": ("m1-*", "m3-k8-fp32-normal")}, {1, 3}),
        ({"cases": ("*-zeros",)}, set()),
        ({"implementations": ("ker*",)}, {1, 2, 3}),
        ({"implementations": ("other",)}, set()),
        ({"gates": ("guard",), "cases": ("*",)}, {1, 2, 3}),
    ],
)
def test_names_and_patterns_select(selection: dict[str, Any], expected: set[int]) -> None:
    plan = plan_of(Selection(worlds=("cpu",), **selection), cases=grid(m=[1, 2, 3], k=8, dtype="fp32"))
    assert {task.case["m"] for task in plan.tasks} == expected
    if "gates" in selection:
        assert keys(plan, "gate") == {("guard",)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"worlds": ("gpu",)}, "unknown world 'gpu'; expected some of cpu, fake-cuda, cuda"),
        ({"gates": ("speed", "guard")}, "unknown gate 'speed'; expected some of correctness, coverage"),
        ({"tier": "nightly"}, "unknown tier 'nightly'; expected some of quick, full"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Selection(**fields)


def test_an_id_that_holds_pattern_characters_selects_itself() -> None:
    case = Case((("layout", "[128,4]*"), ("m", 1), ("k", 8)), "fp32")
    plan = plan_of(Selection(worlds=("cpu",), cases=(case.id,)), cases=[case])
    assert {task.case.id for task in plan.tasks} == {case.id}


def test_gates_that_do_not_look_at_values_run_on_one_regime_per_shape() -> None:
    cases = grid(m=[1, 2], k=8, dtype="fp32", regime=["zeros", "normal", "nan"]) + grid(
        m=3, k=8, dtype="fp32", regime=["huge", "inf"]
    )
    plan = plan_of(ONLY_CPU, cases=cases)
    judged = {gate: {task.case.id for task in plan.tasks if task.gate == gate} for gate in ("correctness", "guard")}
    assert judged["correctness"] == {case.id for case in cases}
    assert judged["guard"] == {"m1-k8-fp32-normal", "m2-k8-fp32-normal", "m3-k8-fp32-huge"}


def test_memory_is_judged_only_where_there_is_a_formula() -> None:
    selection = Selection(worlds=("fake-cuda",))
    assert "memory" not in {task.gate for task in plan_of(selection).tasks}
    assert "memory" in {task.gate for task in plan_of(selection, memory=lambda case: 1 << 20).tasks}


def test_real_weights_become_cases_named_after_their_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a.weight": torch.zeros(4, 8), "b.weight": torch.zeros(2, 2)}, path)

    def cases(tensors: dict[str, tuple[tuple[int, ...], str]]) -> list[Case]:
        return [Case((("m", s[0]), ("k", s[1])), dtype, source=name) for name, (s, dtype) in tensors.items()]

    selection = Selection(worlds=("cpu",), checkpoints=(path,))
    plan = plan_of(selection, checkpoint_cases=cases)
    real = [task for task in plan.tasks if task.case.source]
    assert {task.case.id for task in real} == {"m4-k8-fp32-normal-a.weight", "m2-k2-fp32-normal-b.weight"}
    assert {task.gate for task in real} == {"correctness"}, "its shape is not the suite's to represent"
    assert f"--checkpoint {path}" in real[0].command
    assert not [task for task in plan_of(selection).tasks if task.case.source], "the suite knows no weights"


def test_a_task_survives_the_way_to_another_process() -> None:
    for task in plan_of(cases=grid(m=1, k=8, dtype="fp32", routing="zipf", tier="quick")).tasks:
        assert Task.from_dict(json.loads(json.dumps(task.as_dict()))) == task


def test_the_id_of_a_task_names_all_five_parts() -> None:
    task = plan_of(Selection(worlds=("cpu",), gates=("guard",))).tasks[0]
    assert task.id == "planted[kernel-guard-cpu-m8-k24-fp32-normal]"


def test_the_command_names_the_file_relative_to_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case = grid(m=1, k=8, dtype="fp32", tier="full")[0]
    words = shlex.split(Task(tmp_path / "a b" / "suite_x.py", "axpy", "torch", "guard", "cpu", case).command)
    assert words[:4] == ["harness", "gate", "--suite", "a b/suite_x.py::axpy"]
    assert words[-2:] == ["--tier", "full"]
    elsewhere = Task(Path("/elsewhere/suite_x.py"), "axpy", "torch", "guard", "cpu", case)
    assert "--suite /elsewhere/suite_x.py::axpy" in elsewhere.command
