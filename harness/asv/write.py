"""Writes asv result files for numbers measured where there is neither asv nor git, e.g. on a GPU host.

``asv show``, ``asv publish`` and ``harness.asv.compare`` take the file as one of asv's own. Names, parameters and
versions come from ``benchmarks.json``, which ``asv run --bench just-discover --python=same`` makes on any machine.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import quantile_test

from harness.asv.stored import MACHINE_VERSION, RESULT_VERSION
from harness.files import write_atomically

_COLUMNS = (
    "result",
    "params",
    "version",
    "started_at",
    "duration",
    "stats_ci_99_a",
    "stats_ci_99_b",
    "stats_q_25",
    "stats_q_75",
    "stats_number",
    "stats_repeat",
    "samples",
)

Samples = Sequence[float] | None
"""Seconds, one median for each fresh process; None for a benchmark that failed."""


@dataclass(frozen=True)
class Run:
    """What was measured, where, and of which commit."""

    machine: Mapping[str, str]
    """``machine`` (the name results are filed under) and everything that must agree for a comparison."""
    commit: str
    """Full hash of the commit measured."""
    date_ms: int
    """Date of that commit, in milliseconds since 1970: where asv puts the point on its axis."""
    env_name: str
    """Short name of the software, e.g. ``cuda13.0-torch2.13``; part of the file's name."""
    samples: Mapping[str, Mapping[tuple[str, ...], Samples]]
    """By benchmark name and parameter values. A combination that is absent counts as skipped."""


def write_result(results_dir: Path, run: Run, benchmarks: Mapping[str, Any]) -> Path:
    """Write ``machine.json`` and the result file below ``results_dir``; returns the path of the latter.

    Raises ValueError for a benchmark, parameter or commit that asv would not find again.
    """
    name = run.machine.get("machine", "")
    if not name or "/" in name:
        raise ValueError(f"a machine needs a name that can be a folder, got {name!r}")
    if not re.fullmatch(r"[0-9a-f]{40}", run.commit):
        raise ValueError(f"expected the full hash of a commit (40 hex digits), got {run.commit!r}")
    if not re.fullmatch(r"[\w.+-]{1,100}", run.env_name):
        raise ValueError(f"environment name {run.env_name!r} cannot be part of a file name")
    if not run.samples:
        raise ValueError("no benchmark was measured")
    results = {bench: _row(bench, run, benchmarks) for bench in sorted(run.samples)}
    python = run.machine.get("python", "")
    document = {
        "commit_hash": run.commit,
        "env_name": run.env_name,
        "date": run.date_ms,
        "params": {**run.machine, "python": python},
        "python": python,
        "requirements": {},
        "env_vars": {},
        "result_columns": list(_COLUMNS),
        "results": results,
        "durations": {},
        "version": RESULT_VERSION,
    }
    path = results_dir / name / f"{run.commit[:8]}-{run.env_name}.json"
    write_atomically(
        path.with_name("machine.json"),
        (json.dumps({**run.machine, "version": MACHINE_VERSION}, indent=4, sort_keys=True) + "\n").encode(),
    )
    write_atomically(path, (json.dumps(document) + "\n").encode())
    return path


def _row(bench: str, run: Run, benchmarks: Mapping[str, Any]) -> list[Any]:
    known = benchmarks.get(bench)
    if not isinstance(known, Mapping):
        raise ValueError(f"benchmarks.json does not know {bench!r}; discover again at the commit that was measured")
    combinations = list(itertools.product(*known["params"])) if known["params"] else [()]
    taken = {tuple(repr(value) for value in key): samples for key, samples in run.samples[bench].items()}
    stray = sorted(set(taken) - set(combinations))
    if stray:
        raise ValueError(f"{bench} has no parameters {', '.join(map(str, stray[:3]))}; discover again")
    stats = [_Summary.of(taken.get(key, ())) for key in combinations]
    columns: list[list[Any] | None] = [
        [s.low for s in stats],
        [s.high for s in stats],
        [s.q25 for s in stats],
        [s.q75 for s in stats],
        [1 if s.samples else None for s in stats],
        [len(s.samples) or None for s in stats],
        [list(s.samples) or None for s in stats],
    ]
    # asv writes null for a column of nothing
    columns = [column if column and any(v is not None for v in column) else None for column in columns]
    return [[s.median for s in stats], known["params"], known["version"], run.date_ms, 0.0, *columns]


@dataclass(frozen=True)
class _Summary:
    """Median, 99 % interval of the median and quartiles, as asv computes them from 8 samples on."""

    median: float | None
    low: float | None = None
    high: float | None = None
    q25: float | None = None
    q75: float | None = None
    samples: tuple[float, ...] = ()

    @classmethod
    def of(cls, samples: Samples) -> _Summary:
        if samples is None:
            return cls(None)
        if not samples:
            return cls(math.nan)
        values = tuple(float(value) for value in samples)
        if not all(0.0 < value < math.inf for value in values):
            raise ValueError(f"a duration must be positive and finite, got {min(values)} to {max(values)} s")
        # below 8 samples no order statistics bound the median at 99 %: asv reads infinities as "no interval"
        low, high = -math.inf, math.inf
        if len(values) >= 8:
            interval = quantile_test(np.array(values), p=0.5).confidence_interval(0.99)
            low, high = float(interval.low), float(interval.high)
        q25, q75 = (float(q) for q in np.quantile(values, [0.25, 0.75]))
        return cls(statistics.median(values), low, high, q25, q75, values)
