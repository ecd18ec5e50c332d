"""The runner that asks a GPU: what it does without one, and with cases that die or hang."""

from __future__ import annotations

import json
import multiprocessing
import os
import time

import pytest
import torch

from harness.tests.fake_cuda import measure_capture_truth as runner
from harness.tests.fake_cuda.capture_cases import CASES

FORK = multiprocessing.get_context("fork")  # so that the replaced functions below reach the child


def test_a_process_that_dies_is_a_break_with_the_reason(monkeypatch):
    monkeypatch.setattr(runner, "measure", lambda case: os._exit(7))
    found = runner.measure_in_process("item", FORK, 20)
    assert found == {"outcome": "break", "capture": "the process died with exit code 7"}


def test_a_process_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(runner, "measure", lambda case: time.sleep(60))
    start = time.perf_counter()
    found = runner.measure_in_process("item", FORK, 0.5)
    assert (found["outcome"], time.perf_counter() - start < 20) == ("break", True)


def test_a_device_that_cannot_be_used_says_nothing_about_the_case(monkeypatch):
    def fails(case):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(runner, "measure", fails)
    found = runner.measure_in_process("item", FORK, 20)
    assert found["outcome"] is None
    assert "out of memory" in found["capture"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_nothing_is_written_and_the_exit_code_says_so(tmp_path):
    out = tmp_path / "truth.json"
    assert runner.main(["--out", str(out)]) == 3
    assert not out.exists()


def test_the_file_keeps_old_outcomes_and_takes_new_ones(tmp_path):
    out = tmp_path / "truth.json"
    old = {"date": "2020-01-01", "cases": {"item": {"label": "ok", "outcome": "break", "refuted_label": "x"}}}
    out.write_text(json.dumps(old))
    runner.write(out, {"equal": {"outcome": "captures", "capture": "ok"}}, {"date": "2026-01-01"})
    written = json.loads(out.read_text())
    assert written["date"] == "2026-01-01"
    assert written["cases"]["item"] == {"label": "break", "outcome": "break", "refuted_label": "x"}
    assert written["cases"]["equal"]["outcome"] == "captures"
    assert written["cases"]["cpu"] == {"label": "break", "outcome": None}
    assert set(written["cases"]) == set(CASES)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; outcomes of one are in baselines/")
@pytest.mark.parametrize("name", ["item", "device_scalar_factor"])
def test_a_break_and_a_safe_case_on_this_gpu(name):
    context = multiprocessing.get_context("spawn")
    found = runner.measure_in_process(name, context, 120)
    assert found["outcome"] == ("break" if CASES[name].label == "break" else "captures"), found
