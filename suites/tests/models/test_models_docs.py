"""docs/shapes.md is what the code says; the command line; the package stands on the standard library alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from suites.models.__main__ import main
from suites.models.tables import markdown

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "shapes.md"


def test_docs_and_code_agree() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), (
        "docs/shapes.md differs from the code; run: python -m suites.models --markdown > docs/shapes.md"
    )


def test_every_table_of_the_page_is_rectangular() -> None:
    for block in markdown().split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1
        assert len(rows) != 2, f"a table without rows: {block}"


def test_markdown_option_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--markdown"]) == 0
    assert capsys.readouterr().out == markdown()


def test_listing_can_be_narrowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "v4-pro", "--tp", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("v4-pro.tp4.") for line in lines)
    assert any(line.split() == ["v4-pro.tp4.wq_b", "N", "16384", "K", "1536", "column", "fp8"] for line in lines)
    assert main([]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3 * 4 * 12


@pytest.mark.parametrize("args", [["--tp", "3"], ["--model", "v5"]])
def test_wrong_usage_exits_2_without_a_trace(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(args)
    assert exit_.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import suites.models, suites.models.tables; "
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['suites']"
