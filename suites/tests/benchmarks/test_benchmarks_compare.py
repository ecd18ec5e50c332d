"""Stored results: written without asv, read by asv, and compared so that nothing missing passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asv.results import Results, iter_results_for_machine_and_hash
from asv_runner.statistics import compute_stats

from harness.asv.__main__ import main
from harness.asv.compare import Change, compare
from harness.asv.stored import Cell, Stored, find_result, read_result
from harness.asv.write import Run, write_result

BENCH = "gpu.quantize.time_gpu"
BENCHMARKS = {
    BENCH: {"params": [["'torch'", "'triton'"], ["'m1'", "'m128'"]], "version": "v1"},
    "gpu.linear.time_gpu": {"params": [["'torch'"], ["'m1'"]], "version": "v1"},
    "version": 2,
}
MACHINE = {"machine": "h200", "os": "Linux", "arch": "x86_64", "cpu": "host", "num_cpu": "16", "gpu": "NVIDIA H200"}
A, B = "a" * 40, "b" * 40


def times(scale: float = 1.0, n: int = 8, seed: int = 0) -> list[float]:
    """Process medians of a 20 us kernel with 0.3 % between processes."""
    return list(20e-6 * scale * np.exp(np.random.default_rng(seed).normal(0.0, 0.003, n)))


def stored(commit: str = A, scale: float = 1.0, seed: int = 0, **changes: object) -> Stored:
    cells = [
        Cell(BENCH, ("'torch'", case), "v1", 20e-6 * scale, tuple(times(scale, seed=seed))) for case in ("'m1'", "'m2'")
    ]
    made = Stored(commit, "env", 0, {**MACHINE, "driver": "580"}, {cell.name: cell for cell in cells})
    return replace(made, **changes)  # type: ignore[arg-type]


def run(commit: str, scale: float = 1.0) -> Run:
    samples = {BENCH: {("torch", "m1"): times(scale), ("torch", "m128"): times(scale), ("triton", "m1"): None}}
    return Run(MACHINE, commit, 1_790_000_000_000, "cuda13.0-torch2.13", samples)


def test_a_written_file_is_read_by_asv_as_one_of_its_own(tmp_path: Path) -> None:
    path = write_result(tmp_path, run(A), BENCHMARKS)
    (result,) = iter_results_for_machine_and_hash(str(tmp_path), "h200", A)
    params = BENCHMARKS[BENCH]["params"]
    values = result.get_result_value(BENCH, params)
    median, stats = compute_stats(times(), 1)
    assert values[:2] == [pytest.approx(median, rel=1e-12)] * 2
    assert values[2] is None  # failed
    assert values[3] != values[3]  # not run
    theirs = result.get_result_stats(BENCH, params)[0]
    assert {key: theirs[key] for key in stats} == {key: pytest.approx(value, rel=1e-12) for key, value in stats.items()}
    assert result.get_result_samples(BENCH, params)[0] == times()
    assert result.benchmark_version[BENCH] == "v1"
    assert result.params["gpu"] == "NVIDIA H200"

    ours = read_result(path)
    assert ours.cells[f"{BENCH}('torch', 'm1')"].samples == tuple(times())
    # asv writes it back without loss
    Results.load(str(path), machine_name="h200").save(str(tmp_path / "again"))
    assert read_result(tmp_path / "again" / "h200" / path.name).cells.keys() == ours.cells.keys()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"commit": "abc"}, "full hash"),
        ({"machine": {**MACHINE, "machine": "a/b"}}, "folder"),
        ({"env_name": "a b"}, "file name"),
        ({"samples": {}}, "no benchmark"),
        ({"samples": {"gpu.other.time_gpu": {}}}, "does not know"),
        ({"samples": {BENCH: {("torch", "m7"): times()}}}, "no parameters"),
        ({"samples": {BENCH: {("torch", "m1"): [1e-5, 0.0]}}}, "positive"),
        ({"samples": {BENCH: {("torch", "m1"): [1e-5, float("nan")]}}}, "positive"),
    ],
)
def test_what_asv_would_lose_is_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        write_result(tmp_path, replace(run(A), **change), BENCHMARKS)  # type: ignore[arg-type]
    assert not list(tmp_path.rglob("*-*.json"))


def test_equal_slower_and_faster() -> None:
    changes = {
        scale: {row.change for row in compare(stored(A), stored(B, scale, seed=1)).rows}
        for scale in (1.0, 1.03, 1.2, 0.8)
    }
    assert changes == {1.0: {Change.SAME}, 1.03: {Change.SAME}, 1.2: {Change.SLOWER}, 0.8: {Change.FASTER}}
    assert compare(stored(A), stored(B, 1.2, seed=1)).exit_code()[0] == 1
    assert compare(stored(A), stored(B, 0.8, seed=1)).exit_code()[0] == 0
    # a threshold of the caller's
    assert compare(stored(A), stored(B, 1.03, seed=1), factor=1.02).exit_code()[0] == 1


def with_cell(result: Stored, **changes: object) -> Stored:
    name = f"{BENCH}('torch', 'm1')"
    return replace(result, cells={**result.cells, name: replace(result.cells[name], **changes)})  # type: ignore[arg-type]


NOT_COMPARABLE = {
    "missing": replace(stored(B), cells=dict(list(stored(B).cells.items())[:1])),
    "changed version": with_cell(stored(B), version="v2"),
    "failed": with_cell(stored(B), value=None),
    "skipped": with_cell(stored(B), value=float("nan")),
    "few samples": with_cell(stored(B), samples=tuple(times(n=6))),
    "no samples": with_cell(stored(B), samples=()),
    "other machine": stored(B, params={**MACHINE, "driver": "580", "machine": "h100"}),
    "other driver": stored(B, params={**MACHINE, "driver": "590"}),
    "unknown driver": stored(B, params=MACHINE),
    "nothing": replace(stored(B), cells={}),
}


@pytest.mark.parametrize("after", NOT_COMPARABLE.values(), ids=NOT_COMPARABLE)
def test_what_cannot_be_compared_is_exit_3_in_both_directions(after: Stored) -> None:
    assert compare(stored(A), after).exit_code()[0] == 3
    if after.cells and len(after.cells) == len(stored(A).cells):
        assert compare(after, stored(A)).exit_code()[0] == 3


def test_an_empty_baseline_compares_nothing() -> None:
    result = compare(replace(stored(A), cells={}), stored(B))
    assert {row.change for row in result.rows} == {Change.NEW}
    assert result.exit_code()[0] == 3


def test_skipped_on_both_sides_is_left_out_and_does_not_count() -> None:
    nan = float("nan")
    assert compare(with_cell(stored(A), value=nan), with_cell(stored(B), value=nan)).exit_code()[0] == 0
    nothing = [replace(s, cells={k: replace(c, value=nan) for k, c in s.cells.items()}) for s in (stored(A), stored(B))]
    assert compare(*nothing).exit_code() == (3, "nothing was compared")


def test_slower_outranks_what_could_not_be_compared() -> None:
    assert compare(stored(A), with_cell(stored(B, 1.2, seed=1), version="v2")).exit_code()[0] == 1


def test_far_apart_but_scattered_is_inconclusive() -> None:
    scattered = tuple(20e-6 * np.exp(np.random.default_rng(3).normal(0.2, 0.3, 8)))
    result = compare(stored(A), with_cell(stored(B), samples=scattered))
    assert result.rows[0].change is Change.INCONCLUSIVE
    assert result.exit_code()[0] == 3


def test_a_named_difference_can_be_waived() -> None:
    after = stored(B, params={**MACHINE, "driver": "590"})
    assert compare(stored(A), after, waived=["driver"]).exit_code()[0] == 0


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "benchmarks.json").write_text(json.dumps(BENCHMARKS))
    for commit, scale in ((A, 1.0), (B, 1.3)):
        entries = [
            {"params": ["torch", "m1"], "samples": times(scale)},
            {"params": ["torch", "m128"], "samples": times()},
        ]
        numbers = {"machine": MACHINE, "commit": commit, "date_ms": 1, "env_name": "e", "samples": {BENCH: entries}}
        file = tmp_path / f"{commit[:2]}.numbers"
        file.write_text(json.dumps(numbers))
        assert main(["write", str(file), "--results", str(tmp_path)]) == 0
    where = ["--machine", "h200", "--results", str(tmp_path)]
    assert main(["compare", A, B, *where]) == 1
    assert main(["compare", A, A, *where]) == 0
    assert main(["compare", B, A, *where]) == 0
    shown = capsys.readouterr().out
    assert f"SLOWER          {BENCH}('torch', 'm1')  2.001e-05 -> 2.602e-05  x1.3000" in shown
    assert main(["compare", A, "c" * 40, *where]) == 3
    assert main(["compare", A, B, "--machine", "h100", "--results", str(tmp_path)]) == 3
    assert main(["compare", A, B, *where, "--factor", "0.9"]) == 2


def test_ambiguous_results_ask_for_the_environment(tmp_path: Path) -> None:
    write_result(tmp_path, run(A), BENCHMARKS)
    write_result(tmp_path, replace(run(A), env_name="other"), BENCHMARKS)
    with pytest.raises(ValueError, match="several results match"):
        find_result(tmp_path, "h200", A)
    assert find_result(tmp_path, "h200", A[:5], "other").env_name == "other"
