"""asv end to end on a copy of this tree: discovery, a run, the site, and a comparison of too little data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BENCHMARK = "cpu.quantize_weight_to_nvfp4_kn.time_wall"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files of this checkout, committed or not, and with an empty home beside it."""
    folder = tmp_path_factory.mktemp("asv")
    (folder / "home").mkdir()
    tree = folder / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        # results and shapes of other tests are not needed; a deleted file is still listed
        if name.startswith("baselines/") or not (ROOT / name).is_file():
            continue
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "tree"]):
        git(tree, *command)
    return tree


def git(tree: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    run = subprocess.run(["git", *identity, *arguments], cwd=tree, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def python(tree: Path, *arguments: str, rc: int = 0) -> str:
    environment = {**os.environ, "HOME": str(tree.parent / "home"), "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True, timeout=120
    )
    output = run.stdout + run.stderr
    assert run.returncode == rc, output
    return output


def test_discovery_run_publish_and_compare(clone: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    results = clone / "baselines" / "asv"

    machine = json.loads(python(clone, "-m", "harness.asv", "machine", "--register", "--name", "here"))
    assert machine["torch"]

    select = [
        f"--bench=^{BENCHMARK}\\(.torch., .n16-",
        r"--bench=^gpu\.swizzle_scales\.time_gpu\(.torch., .m1-columns1-",
    ]
    stored = ["--python=same", "--machine", "here", "--set-commit-hash", commit, "--record-samples"]
    said = python(clone, "-m", "asv", "run", "--attribute", "rounds=2", "--show-stderr", *select, *stored)
    assert "skipped: NotImplementedError('no CUDA device')" in said
    known = json.loads((results / "benchmarks.json").read_text())
    names = [name for name, entry in known.items() if isinstance(entry, dict)]
    suites = {name.split(".")[1] for name in names}
    # both worlds of every operation are there on any machine, so results of another one can be published here
    assert {f"gpu.{suite}.time_gpu" for suite in suites} <= set(names)
    assert all(known[name]["rounds"] == 8 and known[name]["unit"] == "seconds" for name in names)

    (file,) = (results / "here").glob(f"{commit[:8]}-*.json")
    row = json.loads(file.read_text())["results"][BENCHMARK]
    median, samples = row[0][0], row[-1][0]
    assert len(samples) == 2  # one for each fresh process
    assert min(samples) <= median <= max(samples)
    assert 1e-6 < median < 1.0

    python(clone, "-m", "asv", "publish")
    index = json.loads((clone / ".asv" / "html" / "index.json").read_text())
    assert BENCHMARK in index["benchmarks"]
    assert "n16-k512-bf16-normal" in python(clone, "-m", "asv", "show", "--machine", "here", commit)

    said = python(clone, "-m", "harness.asv", "compare", commit, commit, "--machine", "here", rc=3)
    assert "2 against 2 samples can never differ" in said


def test_benchmarks_import_the_checkout_they_lie_in_and_leave_the_gpu_alone(clone: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(clone / "suites")!r})
import torch
def touched(*args, **kwargs):
    raise AssertionError("CUDA was touched while importing")
for name in ("_lazy_init", "is_available", "device_count", "current_device", "get_device_properties", "synchronize"):
    setattr(torch.cuda, name, touched)
import benchmarks.gpu, benchmarks.cpu, harness, suites
assert harness.__file__.startswith({str(clone)!r}), harness.__file__
assert suites.__file__.startswith({str(clone)!r}), suites.__file__
assert not torch.cuda.is_initialized()
"""
    python(clone, "-c", program)
