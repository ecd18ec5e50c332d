"""Ways to make a gate weaker, each one that a real harness has had. The museum must notice every one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from harness import buffers, compare, surroundings, trial
from harness.compare import Comparison
from harness.gates import arguments, correctness, coverage, determinism, guard, memory, recompile
from harness.gates.capture import Capture
from harness.suite import Bounded
from harness.trial import Trial
from harness.worlds.fake import FakeCudaWorld

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Weakening:
    """One way to weaken one gate."""

    gate: str
    name: str
    patch: Patch


WEAKENINGS: list[Weakening] = []


def weakens(gate: str) -> Callable[[Patch], Patch]:
    def add(patch: Patch) -> Patch:
        WEAKENINGS.append(Weakening(gate, patch.__name__, patch))
        return patch

    return add


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _compare_with(patch: pytest.MonkeyPatch, accept: Callable[[torch.Tensor, torch.Tensor, Any], bool]) -> None:
    """Replace the comparison of values by a function of found, expected and tolerance."""

    def judged(found: torch.Tensor, expected: Any, tolerance: Any) -> Comparison:
        value = expected.value if isinstance(expected, Bounded) else expected
        if found.shape != value.shape:
            return Comparison(False, "wrong shape")
        return Comparison(accept(found, value.to(found.device), tolerance))

    patch.setattr(trial, "compare", judged)
    patch.setattr(compare, "compare", judged)


# -- correctness


@weakens("correctness")
def nan_is_a_wildcard(patch: pytest.MonkeyPatch) -> None:
    original = compare.compare

    def lenient(found: torch.Tensor, expected: Any, tolerance: Any) -> Comparison:
        value = expected.value if isinstance(expected, Bounded) else expected
        if found.is_floating_point() and found.shape == value.shape:
            found = torch.where(torch.isnan(found.float()), value.to(found.device).to(found.dtype), found)
        return original(found, expected, tolerance)

    patch.setattr(trial, "compare", lenient)


@weakens("correctness")
def cosine_only(patch: pytest.MonkeyPatch) -> None:
    def similar(found: torch.Tensor, value: torch.Tensor, tolerance: Any) -> bool:
        a, b = found.double().flatten(), value.double().flatten()
        return not a.numel() or float(torch.cosine_similarity(a, b, dim=0)) >= 0.98 or bool(torch.equal(a, b))

    _compare_with(patch, similar)


@weakens("correctness")
def tolerance_ignored(patch: pytest.MonkeyPatch) -> None:
    _compare_with(patch, lambda found, value, tolerance: True)


@weakens("correctness")
def mean_error_instead_of_each(patch: pytest.MonkeyPatch) -> None:
    def small_on_average(found: torch.Tensor, value: torch.Tensor, tolerance: Any) -> bool:
        error, size = (found.double() - value.double()).abs().mean(), value.double().abs().mean()
        return not bool(error > 0.01 + 0.01 * size)

    _compare_with(patch, small_on_average)


@weakens("correctness")
def one_draw_of_data(patch: pytest.MonkeyPatch) -> None:
    original = Trial.inputs
    patch.setattr(Trial, "inputs", lambda self, salt=0, case=None: original(self, 0, case))


@weakens("correctness")
def normal_data_only(patch: pytest.MonkeyPatch) -> None:
    original = Trial.inputs
    patch.setattr(
        Trial,
        "inputs",
        lambda self, salt=0, case=None: original(self, salt, dataclasses.replace(case or self.case, regime="normal")),
    )


@weakens("correctness")
def nothing_doubts_the_oracle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(correctness, "doubt_oracle", _nothing)
    patch.setattr(correctness, "null_models", _nothing)


# -- coverage


@weakens("coverage")
def fresh_memory_is_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coverage, "POISONS", (0, 0))


@weakens("coverage")
def nothing_is_poisoned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(buffers.GuardedAllocations, "_replace", lambda self, fresh: fresh.zero_())


@weakens("coverage")
def only_whole_poison_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coverage, "same_bits", lambda a, b: True)


@weakens("coverage")
def out_is_not_tried(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coverage.Coverage, "_given_out", _nothing)


@weakens("coverage")
def outputs_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coverage.Coverage, "_compare", _nothing)


# -- guard


@weakens("guard")
def canaries_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(buffers.Guarded, "damage", _nothing)


@weakens("guard")
def inputs_have_no_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard, "bits", lambda value: torch.zeros(1))


@weakens("guard")
def one_canary_pattern(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard, "guarded", lambda tensor, label, canary: buffers.guarded(tensor, label, 0xA5))


@weakens("guard")
def threads_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard, "wait_for_threads", lambda running: False)


@weakens("guard")
def settings_may_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard, "changed_settings", lambda before: [])


@weakens("guard")
def clocks_may_be_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard, "replaced_functions", lambda: surroundings.replaced_functions() and [])


@weakens("guard")
def random_state_may_be_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard, "reseeded", lambda first, second: [])


# -- arguments


@weakens("arguments")
def any_error_will_do(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(arguments, "CLEAR", (Exception,))
    patch.setattr(arguments, "_ACCIDENTS", ())


@weakens("arguments")
def layouts_are_not_varied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(arguments, "_layouts", lambda tensor: iter(()))


@weakens("arguments")
def results_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(arguments.Arguments, "_judge_outputs", _nothing)


@weakens("arguments")
def dtypes_are_not_varied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(arguments, "_other_dtypes", lambda dtype: ())


@weakens("arguments")
def no_empty_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(arguments, "_empty_batch", lambda trial, inputs: iter(()))


# -- determinism


@weakens("determinism")
def close_is_equal(patch: pytest.MonkeyPatch) -> None:
    def close(outputs: dict[str, Any], expected: dict[str, Any], findings: Any, what: str) -> None:
        for name, value in trial.tensors_of(outputs).items():
            same = torch.allclose(value.double(), expected[name].double(), rtol=1e-2, atol=1e-2, equal_nan=True)
            findings.check(same, f"{what}{name}")

    patch.setattr(determinism, "check_same", close)


@weakens("determinism")
def nothing_is_repeated(patch: pytest.MonkeyPatch) -> None:
    """Repeats in one thread and in two see much the same; without either, one later call is left."""
    patch.setattr(determinism, "REPEATS", {"cpu": 0, "cuda": 0})
    patch.setattr(determinism, "_two_threads", _nothing)


@weakens("determinism")
def rows_are_not_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(determinism, "_rows", _nothing)


@weakens("determinism")
def neighbours_do_not_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(determinism, "_other_neighbours", _nothing)


@weakens("determinism")
def one_thread(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(determinism, "_two_threads", _nothing)


# -- recompile


@contextmanager
def _unwatched() -> Iterator[list[str]]:
    yield []


@weakens("recompile")
def compiles_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recompile, "watch_compiles", _unwatched)


@weakens("recompile")
def sizes_are_not_swept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recompile.Recompile, "_sweep", _nothing)


@weakens("recompile")
def nothing_is_traced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recompile.Recompile, "_traced", _nothing)


@weakens("recompile")
def operators_are_taken_at_their_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recompile.OperatorWatch, "_tell", _nothing)


@weakens("recompile")
def warm_results_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recompile, "check_same", _nothing)
    patch.setattr(Trial, "compare", _nothing)


# -- capture


def _answers(patch: pytest.MonkeyPatch, change: Callable[[Any], dict[str, Any]]) -> None:
    original = FakeCudaWorld.capture
    patch.setattr(
        FakeCudaWorld,
        "capture",
        lambda self, call, inputs: dataclasses.replace(answer := original(self, call, inputs), **change(answer)),
    )


@weakens("capture")
def breaks_are_ignored(patch: pytest.MonkeyPatch) -> None:
    _answers(patch, lambda answer: {"breaks": ()})


@weakens("capture")
def hazards_are_ignored(patch: pytest.MonkeyPatch) -> None:
    _answers(patch, lambda answer: {"hazards": ()})


@weakens("capture")
def copies_from_the_host_are_ignored(patch: pytest.MonkeyPatch) -> None:
    _answers(patch, lambda answer: {"breaks": tuple(line for line in answer.breaks if "host-to-device" not in line)})


@weakens("capture")
def host_reads_are_ignored(patch: pytest.MonkeyPatch) -> None:
    _answers(patch, lambda answer: {"breaks": tuple(line for line in answer.breaks if "host-sync" not in line)})


@weakens("capture")
def declarations_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Capture, "_declared", _nothing)


@weakens("capture")
def one_captured_call(patch: pytest.MonkeyPatch) -> None:
    from harness.fake_cuda.watched_call import Watcher

    patch.setattr(Watcher, "compared", lambda self, first, second: [])


# -- memory


def _reports(patch: pytest.MonkeyPatch, **change: Callable[[Any], Any]) -> None:
    original = FakeCudaWorld.memory

    def answer(self: FakeCudaWorld, build: Any, *, ledgers: bool = True) -> Any:
        given = original(self, build, ledgers=ledgers)
        return dataclasses.replace(given, **{name: make(given) for name, make in change.items()})

    patch.setattr(FakeCudaWorld, "memory", answer)


@weakens("memory")
def growth_is_ignored(patch: pytest.MonkeyPatch) -> None:
    _reports(patch, growth=lambda answer: 0)


@weakens("memory")
def a_tenth_of_the_peak(patch: pytest.MonkeyPatch) -> None:
    _reports(patch, requested=lambda answer: answer.requested // 10)


@weakens("memory")
def only_inputs_count(patch: pytest.MonkeyPatch) -> None:
    _reports(patch, requested=lambda answer: answer.inputs)


@weakens("memory")
def slope_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory.Memory, "_slope", _nothing)


@weakens("memory")
def four_times_the_formula(patch: pytest.MonkeyPatch) -> None:
    _reports(patch, requested=lambda answer: answer.requested // 4)
