from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import read_results
from harness.files import write_atomically
from harness.fingerprint import fingerprint
from harness.results import SCHEMA, ResultFile, read_run
from harness.verdict import Figure, Status, Verdict


def verdict(number: int, status: Status = Status.PASS) -> Verdict:
    return Verdict(status, suite="s", gate="memory", case=f"m{number}", figures=(Figure("peak", number, "B"),))


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "deep" / "run.jsonl", arguments=["gate", "--world", "cpu"])
    results.write(verdict(1))
    results.write(verdict(2, Status.FAIL))
    results.close()
    run = read_run(results.path)
    assert run.verdicts == (verdict(1), verdict(2, Status.FAIL))
    assert run.complete
    assert (run.header["schema"], run.header["arguments"]) == (SCHEMA, ["gate", "--world", "cpu"])
    assert run.header["machine"] == json.loads(json.dumps(fingerprint()))


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    ResultFile(path).close()
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="results are never overwritten"):
        ResultFile(path)
    assert path.read_bytes() == before


def test_each_verdict_is_on_disk_before_the_next_one_starts(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "run.jsonl")
    for number in range(3):
        results.write(verdict(number))
        run = read_run(results.path)
        assert run.verdicts[-1] == verdict(number)
        assert not run.complete


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_cut_off_last_line_costs_that_line_only(tmp_path: Path, cut: int) -> None:
    results = ResultFile(tmp_path / "run.jsonl")
    results.write(verdict(1))
    results.write(verdict(2))
    data = results.path.read_bytes()
    results.path.write_bytes(data[:-cut])
    run = read_run(results.path)
    assert run.verdicts == ((verdict(1), verdict(2)) if cut == 1 else (verdict(1),))
    assert not run.complete


def test_a_damaged_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "run.jsonl")
    results.write(verdict(1))
    lines = results.path.read_text().splitlines()
    results.path.write_text("\n".join([lines[0], lines[1][:30], lines[1], ""]))
    with pytest.raises(ValueError, match=r"run.jsonl:2 is not JSON"):
        read_run(results.path)


@pytest.mark.parametrize("text", ["", "{}\n", '{"kind": "verdict"}\n', "[]"])
def test_a_file_without_the_line_that_describes_the_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.jsonl").write_text(text)
    with pytest.raises(ValueError, match="is no result file"):
        read_run(tmp_path / "other.jsonl")


def test_another_schema_is_refused_not_guessed(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "run.jsonl")
    text = results.path.read_text().replace(f'"schema": {SCHEMA}', '"schema": 99')
    results.path.write_text(text)
    with pytest.raises(ValueError, match=f"has schema 99, this version reads {SCHEMA}"):
        read_run(results.path)


def test_a_data_frame_has_a_row_a_verdict_and_a_column_a_figure(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "run.jsonl")
    results.write(verdict(1))
    results.write(verdict(7, Status.FAIL))
    results.close()
    frame = read_results(results.path)
    assert frame["status"].tolist() == ["PASS", "FAIL"]
    assert frame["figure.peak"].tolist() == [1, 7]
    assert frame.attrs["complete"] is True
    assert frame.attrs["machine"]["torch"]
    assert len(read_results(_empty(tmp_path))) == 0


def _empty(tmp_path: Path) -> Path:
    results = ResultFile(tmp_path / "empty.jsonl")
    results.close()
    return results.path


def test_a_short_write_is_an_error_not_a_silent_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = ResultFile(tmp_path / "run.jsonl")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
    with pytest.raises(OSError, match=r"wrote 5 of \d+ bytes"):
        results.write(verdict(1))


_ENDLESS = """
import sys
from harness.results import ResultFile
from harness.verdict import Status, Verdict
results = ResultFile(sys.argv[1], arguments=[])
for number in range(1_000_000):
    results.write(Verdict(Status.PASS, case=str(number), details=("x" * 5000,)))
    print(number, flush=True)
"""


def test_kill_9_in_the_middle_of_a_run_loses_at_most_the_verdict_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    child = subprocess.Popen([sys.executable, "-c", _ENDLESS, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(20):  # acknowledged verdicts: these may not be lost
        child.stdout.readline()
    time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    acknowledged = 19 + len(child.stdout.read().split())
    child.wait()
    run = read_run(path)
    assert not run.complete
    assert [v.case for v in run.verdicts] == [str(number) for number in range(len(run.verdicts))]
    assert acknowledged + 1 <= len(run.verdicts) <= acknowledged + 2


def test_a_file_written_atomically_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "report.md"
    write_atomically(path, b"one")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"


def test_the_fingerprint_names_machine_and_software_and_invents_nothing() -> None:
    found = fingerprint()
    assert found["torch"]
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert None not in found.values()
    json.dumps(found)
