"""The command line: through typer in this process, and through the installed console script."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import cli, read_results
from harness.registry import _suites
from harness.results import read_run
from harness.tests.planted import SUITE_FILE, broken_suite_file
from harness.verdict import Status
from harness.worlds import WORLD_CLASSES

WriteSuite = Callable[..., Path]
SCRIPT = Path(sys.executable).with_name("harness")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_registry: None) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def main(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    """Through the console entry, which turns a user's mistake into a line and an exit code."""
    monkeypatch.setattr(sys, "argv", ["harness", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out + captured.err


def script(*words: str) -> tuple[int, str]:
    run = subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=90)
    return run.returncode, run.stdout + run.stderr


CPU = ("--world", "cpu", "--gate", "correctness", "--json", "out.jsonl")


def test_all_passed_is_0_and_the_table_says_so(suite_file: WriteSuite) -> None:
    suite_file(SUITE_FILE)
    code, text = run("gate", "--suite", "suite_axpy.py", *CPU)
    assert code == 0
    assert "✓ 2" in text
    assert "2 verdicts passed; results in out.jsonl" in text
    assert read_run("out.jsonl").complete


def test_a_failed_gate_is_1_with_expected_found_worst_element_and_command(suite_file: WriteSuite) -> None:
    suite_file(broken_suite_file())
    code, text = run("gate", "--suite", "suite_axpy.py", *CPU)
    assert code == 1
    assert "1 of 2 verdicts are FAIL" in text
    assert "worst at [" in text
    assert "(tile " in text
    assert "+- " in text
    assert "again     harness gate --suite suite_axpy.py::axpy --implementation torch --gate correctness" in text


def test_nothing_measured_is_3(suite_file: WriteSuite) -> None:
    suite_file(SUITE_FILE)
    for words in (["--case", "m999-*"], ["--implementation", "other"]):
        Path("out.jsonl").unlink(missing_ok=True)
        code, text = run("gate", "--suite", "suite_axpy.py", *CPU, *words)
        assert (code, "nothing was measured" in text) == (3, True)


def test_a_world_that_is_not_there_is_3_and_waived_by_name(
    suite_file: WriteSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WORLD_CLASSES["cuda"], "unavailable", lambda self: "no CUDA device [here]")
    suite_file(SUITE_FILE)
    code, text = run("gate", "--suite", "suite_axpy.py", *CPU, "--world", "cuda")
    assert code == 3
    assert "world cuda is not here: no CUDA device [here]" in text
    Path("out.jsonl").unlink()
    assert run("gate", "--suite", "suite_axpy.py", *CPU, "--world", "cuda", "--waive", "world:cuda")[0] == 0


def test_a_doubtful_verdict_is_3_and_waived_by_its_key(suite_file: WriteSuite) -> None:
    suite_file(SUITE_FILE.replace("atol=1e-6", "atol=1e6"))
    code, text = run("gate", "--suite", "suite_axpy.py", *CPU)
    assert code == 3
    assert "would pass too" in text
    Path("out.jsonl").unlink()
    waiver = ("--waive", "axpy/torch/correctness/cpu/*", "--gate", "guard")
    assert run("gate", "--suite", "suite_axpy.py", *CPU, *waiver)[0] == 0


MISTAKES = {
    "unknown suite": (["gate", "--suite", "gemm"], "no suite named 'gemm'"),
    "missing file": (["gate", "--suite", "absent.py"], "no such suite file or folder"),
    "file without a suite": (["gate", "--suite", "empty.py"], "registers no suite"),
    "suite file with an error": (["gate", "--suite", "broken.py"], "broken.py:2: NameError: name 'undefined' is not"),
    "suite file that is no Python": (["gate", "--suite", "syntax.py"], "syntax.py:1: SyntaxError"),
    "unknown gate": (["gate", "--suite", "suite_axpy.py", "--gate", "speed"], "unknown gate 'speed'"),
    "unknown world": (["gate", "--suite", "suite_axpy.py", "--world", "tpu"], "unknown world 'tpu'"),
    "unknown tier": (["gate", "--suite", "suite_axpy.py", "--tier", "nightly"], "unknown tier 'nightly'"),
    "unknown isolation": (["gate", "--suite", "suite_axpy.py", "--isolate", "some"], "unknown --isolate 'some'"),
    "unknown option": (["gate", "--fast"], "No such option"),
    "unknown command": (["gates"], "No such command"),
    "missing checkpoint": (
        ["gate", "--suite", "suite_axpy.py", "--checkpoint", "absent.safetensors"],
        "no such checkpoint: absent.safetensors",
    ),
    "existing result file": (["gate", "--suite", "suite_axpy.py", "--json", "empty.py"], "are never overwritten"),
    "result file in a file": (["gate", "--suite", "suite_axpy.py", "--json", "empty.py/x.jsonl"], "empty.py"),
    "report of no result file": (["report", "empty.py"], "is no result file"),
    "report of nothing": (["report", "absent.jsonl"], "absent.jsonl"),
    "no suites here": (["list"], "no suites found"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_2_with_a_line_that_names_it_and_no_stack_trace(
    suite_file: WriteSuite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    suite_file(SUITE_FILE)
    suite_file("", "empty.py")
    suite_file("x = 1\nundefined\n", "broken.py")
    suite_file("x = = 1\n", "syntax.py")
    words, message = MISTAKES[mistake]
    code, text = main(capsys, monkeypatch, *words)
    assert code == 2
    assert message in text
    assert "Traceback" not in text


def test_markdown_junit_and_json_are_written_and_agree(suite_file: WriteSuite) -> None:
    suite_file(broken_suite_file())
    code, _ = run("gate", "--suite", "suite_axpy.py", *CPU, "--markdown", "new/gate.md", "--junit", "new/gate.xml")
    assert code == 1
    verdicts = read_run("out.jsonl").verdicts
    assert [v.status for v in verdicts] == [Status.PASS, Status.FAIL]
    assert "✗ 1/2" in Path("new/gate.md").read_text()
    suite = ET.parse("new/gate.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert len(read_results("out.jsonl")) == 2
    header = json.loads(Path("out.jsonl").read_text().splitlines()[0])
    assert header["machine"]["torch"]


def test_results_go_to_reports_when_no_file_is_named(suite_file: WriteSuite) -> None:
    suite_file(SUITE_FILE)
    assert run("gate", "--suite", "suite_axpy.py", "--world", "cpu", "--gate", "guard", "--case", "m4-*")[0] == 0
    (result,) = Path("reports").glob("gate-*.jsonl")
    assert len(read_run(result).verdicts) == 1


def test_fail_fast_stops_at_the_first_failure(suite_file: WriteSuite) -> None:
    suite_file(SUITE_FILE.replace("return 2 * x + y\n\nregister", "return x\n\nregister"))
    words = ("gate", "--suite", "suite_axpy.py", "--world", "cpu", "--json")
    assert run(*words, "all.jsonl")[0] == 1
    assert run(*words, "first.jsonl", "--fail-fast")[0] == 1
    assert len(read_run("first.jsonl").verdicts) == 1 < len(read_run("all.jsonl").verdicts)


def test_the_command_of_a_verdict_shows_the_same_verdict_again(suite_file: WriteSuite) -> None:
    """Two suites of one file share case ids: the command runs the one trial and no other."""
    suite_file(broken_suite_file() + SUITE_FILE.replace('"axpy"', '"axpy_again"'))
    assert run("gate", "--suite", "suite_axpy.py", "--world", "cpu", "--json", "out.jsonl")[0] == 1
    verdicts = read_run("out.jsonl").verdicts
    failed = [v for v in verdicts if v.status is Status.FAIL]
    for number, verdict in enumerate([failed[0], failed[-1], verdicts[-1]]):
        _suites.clear()
        for name in [name for name in sys.modules if name.startswith("_suite_")]:
            del sys.modules[name]
        name, *words = shlex.split(verdict.reproduce)
        assert name == "harness"
        code, _ = run(*words, "--json", f"again{number}.jsonl")
        (again,) = read_run(f"again{number}.jsonl").verdicts
        assert (again.key, again.status, again.reason) == (verdict.key, verdict.status, verdict.reason)
        assert code == (1 if verdict.status is Status.FAIL else 0)


def test_list_shows_suites_gates_worlds_and_cases(suite_file: WriteSuite) -> None:
    suite_file(SUITE_FILE.replace('name="axpy",', 'name="axpy", doc="needs nvidia-cutlass-dsl[cu13]",'))
    code, text = run("list", "--suite", "suite_axpy.py", "--cases")
    assert code == 0
    for words in ("axpy", "2 / 2", "nvidia-cutlass-dsl[cu13]", "correctness", "replay", "world cpu: here"):
        assert words in text
    assert "axpy  m130-k16-fp32-normal  (quick; cpu, fake-cuda, cuda, codegen)" in text


def test_every_gate_says_in_one_sentence_what_it_proves() -> None:
    from harness.gates import GATES

    for name, gate in GATES.items():
        sentence = (gate.__doc__ or "").strip().splitlines()[0]
        assert sentence.endswith("."), name
        assert gate.name == name


def test_report_shows_a_stored_run_again_and_says_when_it_was_cut_short(suite_file: WriteSuite) -> None:
    suite_file(broken_suite_file())
    run("gate", "--suite", "suite_axpy.py", *CPU)
    written = ("--markdown", "r.md", "--junit", "r.xml", "--agreement", "a.md")
    code, text = run("report", "out.jsonl", "--failures", *written)
    assert code == 0
    assert "✗ 1/2" in text
    assert "worst at" in text
    assert "cut short" not in text
    assert "Run of 20" in Path("r.md").read_text()
    assert ET.parse("r.xml").getroot().tag == "testsuites"
    assert Path("a.md").read_text().startswith("No trial")
    Path("cut.jsonl").write_text("\n".join(Path("out.jsonl").read_text().splitlines()[:2]) + "\n")
    assert "cut short before its end" in run("report", "cut.jsonl")[1]


def test_the_console_script_ends_with_0_1_2_and_3(suite_file: WriteSuite) -> None:
    """One process each: what a shell or a CI system sees."""
    suite_file(SUITE_FILE)
    suite_file(broken_suite_file().replace('"axpy"', '"broken"'), "suite_broken.py")
    correctness = ("--world", "cpu", "--gate", "correctness")
    commands = {
        0: ("gate", "--suite", "suite_axpy.py", *correctness, "--isolate", "none"),
        1: ("gate", "--suite", "suite_broken.py", *correctness),
        2: ("gate", "--suite", "suite_absent.py"),
        3: ("gate", "--suite", "suite_axpy.py", *correctness, "--case", "nothing"),
    }
    for expected, words in commands.items():
        code, text = script(*words)
        assert code == expected, text
        assert "Traceback" not in text
        assert "\x1b[" not in text, "no colours in a pipe"
    assert script("--help")[0] == 0


def test_a_killed_run_leaves_its_verdicts_and_is_told_to_be_cut_short(suite_file: WriteSuite) -> None:
    dies = "def kernel(x, y):\n    if x.shape[0] > 100: os.kill(os.getpid(), 9)"
    text = SUITE_FILE.replace("def kernel(x, y):", dies)
    suite_file("import os\n" + text)
    code, _ = script("gate", "--suite", "suite_axpy.py", "--world", "cpu", "--gate", "correctness", "--json", "k.jsonl")
    assert code == -9
    stored = read_run("k.jsonl")
    assert [v.case for v in stored.verdicts] == ["m4-k16-fp32-normal"]
    assert not stored.complete
    assert os.stat("k.jsonl").st_size > 0
