"""One asv result file as plain data: the numbers of one commit on one machine."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULT_VERSION = 2
"""Version of asv's result format that is read and written here (asv 0.6)."""

MACHINE_VERSION = 1


@dataclass(frozen=True)
class Cell:
    """One benchmark with one combination of parameters."""

    benchmark: str
    params: tuple[str, ...]
    """As asv writes them: the ``repr`` of each value."""
    version: str
    """What the benchmark measured, and how; here the hash of the timing contract."""
    value: float | None
    """Median, in the benchmark's unit. NaN: skipped. None: failed."""
    samples: tuple[float, ...] = ()
    """One median for each fresh process; empty when asv ran without --record-samples."""

    @property
    def name(self) -> str:
        return f"{self.benchmark}({', '.join(self.params)})"

    @property
    def measured(self) -> bool:
        return self.value is not None and not math.isnan(self.value)


@dataclass(frozen=True)
class Stored:
    """Results of one commit on one machine in one environment."""

    commit: str
    env_name: str
    date_ms: int
    params: Mapping[str, str]
    """The machine as asv describes it, with whatever was added to it (GPU, driver, CUDA, torch)."""
    cells: Mapping[str, Cell]
    """By ``Cell.name``."""


def read_result(path: Path) -> Stored:
    """Read one result file. ValueError for a file of another format version or with missing parts."""
    data = json.loads(path.read_text())
    if data.get("version") != RESULT_VERSION:
        raise ValueError(f"{path}: result format {data.get('version')!r}, this reads version {RESULT_VERSION}")
    cells = {}
    for benchmark, row in data["results"].items():
        for cell in _cells(benchmark, dict(zip(data["result_columns"], row, strict=False))):
            cells[cell.name] = cell
    params = {key: str(value) for key, value in data["params"].items()}
    return Stored(data["commit_hash"], data["env_name"], data["date"], params, cells)


def find_result(results_dir: Path, machine: str, commit: str, env_name: str | None = None) -> Stored:
    """The stored results of a commit (any prefix of its hash) on a machine.

    FileNotFoundError when there are none, ValueError when several environments or commits match.
    """
    folder = results_dir / machine
    if not folder.is_dir():
        known = sorted(path.parent.name for path in results_dir.glob("*/machine.json"))
        raise FileNotFoundError(f"no results of machine {machine!r} in {results_dir}; it has: {', '.join(known)}")
    # asv names files by the first 8 digits of the hash
    found = [read_result(path) for path in sorted(folder.glob(f"{commit[:8]}*-*.json"))]
    found = [r for r in found if r.commit.startswith(commit) and env_name in (None, r.env_name)]
    if not found:
        raise FileNotFoundError(f"no results of commit {commit} on machine {machine!r} in {results_dir}")
    if len(found) > 1:
        names = "; ".join(f"{r.commit[:8]} {r.env_name}" for r in found)
        raise ValueError(f"several results match commit {commit} on {machine!r}: {names}; name the environment too")
    return found[0]


def _cells(benchmark: str, row: Mapping[str, Any]) -> list[Cell]:
    combinations = list(itertools.product(*row["params"])) if row.get("params") else [()]
    # asv shortens a list of nothing but None to None
    values = row.get("result") or [None] * len(combinations)
    samples = row.get("samples") or [None] * len(combinations)
    return [
        Cell(benchmark, tuple(params), str(row.get("version")), value, tuple(taken or ()))
        for params, value, taken in zip(combinations, values, samples, strict=True)
    ]
