"""The README's example is run as it stands: it passes, and fails when broken in the way that it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
EXAMPLE = re.compile(
    r"<!-- example: (?P<file>\S+) -->\n```python\n(?P<code>.*?)```\n"
    r'<!-- break: replace "(?P<good>.*?)" by "(?P<bad>.*?)" -->',
    re.DOTALL,
)


def gate(folder: Path, code: str, name: str) -> subprocess.CompletedProcess[str]:
    (folder / name).write_text(code)
    command = [sys.executable, "-m", "harness.cli", "gate", "--suite", name, "--jobs", "1"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


def example() -> re.Match[str]:
    found = EXAMPLE.search(README.read_text())
    assert found is not None, "the README has no example with its marks"
    return found


def test_the_example_passes(tmp_path: Path) -> None:
    found = example()
    run = gate(tmp_path, found["code"], found["file"])
    assert run.returncode == 0, run.stdout
    assert "fake-cuda" in run.stdout


def test_the_example_fails_when_broken(tmp_path: Path) -> None:
    found = example()
    assert found["code"].count(found["good"]) == 1
    run = gate(tmp_path, found["code"].replace(found["good"], found["bad"]), found["file"])
    assert run.returncode == 1, run.stdout
    assert "outside the bound" in run.stdout


def test_the_example_is_short() -> None:
    lines = [line for line in example()["code"].splitlines() if line.strip()]
    assert len(lines) <= 26


def test_every_file_that_the_readme_links_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
