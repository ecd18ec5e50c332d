"""The wheel ships ``harness`` alone, and lives beside Hugging Face's package that is imported as ``kernels``."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        ROOT,
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    return next(folder.glob("kernel_harness-*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with our wheel and theirs, as an environment that has both."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, wheel, "kernels"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if run.returncode:
        message = f"Hugging Face's kernels cannot be had here: {run.stderr.strip().splitlines()[-1]}"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return folder


def python(site: Path, folder: Path, code: str) -> str:
    """Run code in ``folder`` with ``site`` on the path."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_the_wheel_holds_the_harness_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"harness"}
    assert "harness/py.typed" in names
    assert not [name for name in names if name.startswith("harness/tests/")]


def test_outside_the_checkout_kernels_is_theirs_and_harness_works(site: Path, tmp_path: Path) -> None:
    code = (
        "import kernels, harness, harness.cli\n"
        "from harness import Case, grid\n"
        "assert hasattr(kernels, 'get_kernel'), kernels.__file__\n"
        "print(kernels.__file__, harness.__file__)"
    )
    theirs, ours = python(site, tmp_path, code).split()
    assert theirs.startswith(str(site))
    assert ours.startswith(str(site))


def test_the_harness_gates_a_suite_that_uses_their_package(site: Path, tmp_path: Path) -> None:
    (tmp_path / "suite_theirs.py").write_text(
        "import kernels, torch\nimport harness as kh\nassert hasattr(kernels, 'get_kernel')\n"
        "kh.register(kh.Suite(name='theirs', inputs=lambda case, draw: {'x': draw.tensor(case['m'])},\n"
        "    reference=lambda x: x.double() * 2, implementations={'torch': kh.Implementation(lambda x: x * 2)},\n"
        "    cases=kh.grid(m=[8]), tolerance=kh.Tolerance(rtol=2**-8)))\n"
    )
    code = "import sys; from harness.cli import main; sys.argv = ['harness', 'gate', '--suite', 'suite_theirs.py', "
    code += "'--world', 'cpu', '--gate', 'correctness', '--jobs', '1']; main()"
    assert "1 verdicts passed" in python(site, tmp_path, code)


def test_inside_the_checkout_kernels_is_ours(site: Path) -> None:
    """The suites import the checkout's kernels although theirs is installed."""
    code = (
        "from harness.registry import load, registered\n"
        "load('suites/nvfp4/suite_dequantize.py')\n"
        "import kernels.nvfp4\n"
        "assert 'dequantize_nvfp4_bf16' in registered()\n"
        "print(kernels.nvfp4.__file__)"
    )
    assert python(site, ROOT, code).startswith(str(ROOT / "kernels"))


def test_the_pytest_plugin_costs_nothing_where_it_is_idle(tmp_path: Path) -> None:
    code = "import sys, harness.pytest_plugin; print(sorted({'torch', 'pandas', 'nvtx'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
