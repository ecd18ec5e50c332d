"""Results of a run: one JSON-lines file, appended a verdict at a time.

The first line describes the run (schema version, machine fingerprint, command line), every further line is one
verdict, the last one (``kind: "end"``) says that the run was not cut short. Each line is written by a single
``write`` to a file opened for appending and then synced, so a killed run loses at most the verdict in flight.
Every table, page, Markdown, JUnit file and DataFrame is made from this file alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.fingerprint import fingerprint
from harness.verdict import Verdict

SCHEMA = 1


@dataclass(frozen=True)
class Run:
    """A result file read back: header, verdicts, and whether the run came to its end."""

    header: dict[str, Any]
    verdicts: tuple[Verdict, ...]
    complete: bool


class ResultFile:
    """Appends verdicts to ``path``. An existing file is refused: results of two runs never mix."""

    def __init__(self, path: Path | str, *, arguments: Sequence[str] | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            raise FileExistsError(f"{self.path} exists; results are never overwritten: name another file") from None
        header = {
            "kind": "run",
            "schema": SCHEMA,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "arguments": list(sys.argv[1:] if arguments is None else arguments),
            "machine": fingerprint(),
        }
        self._append(header)

    def write(self, verdict: Verdict) -> None:
        self._append({"kind": "verdict", **verdict.as_dict()})

    def close(self) -> None:
        self._append({"kind": "end"})
        os.close(self._fd)

    def _append(self, record: dict[str, Any]) -> None:
        data = (json.dumps(record, allow_nan=True) + "\n").encode()
        written = os.write(self._fd, data)
        if written != len(data):
            raise OSError(f"{self.path}: wrote {written} of {len(data)} bytes; is the disk full?")
        os.fsync(self._fd)


def read_run(path: Path | str) -> Run:
    """Read a result file. A cut-off last line (a killed run) is dropped; anything else unreadable is an error."""
    path = Path(path)
    records = list(_records(path))
    if not all(isinstance(record, dict) and "kind" in record for record in records):
        raise ValueError(f"{path} is no result file: every line must be an object with a kind")
    if not records or records[0]["kind"] != "run":
        raise ValueError(f"{path} is no result file: its first line must describe the run")
    header = records[0]
    if header.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {header.get('schema')}, this version reads {SCHEMA}")
    verdicts = tuple(
        Verdict.from_dict({key: value for key, value in record.items() if key != "kind"})
        for record in records[1:]
        if record["kind"] == "verdict"
    )
    return Run(header, verdicts, complete=records[-1]["kind"] == "end")


def read_results(path: Path | str) -> pd.DataFrame:
    """One row a verdict, its figures as columns ``figure.<tag>``; the machine in ``frame.attrs["machine"]``."""
    run = read_run(path)
    rows = []
    for verdict in run.verdicts:
        row = verdict.as_dict()
        row.update({f"figure.{figure['tag']}": figure["value"] for figure in row.pop("figures")})
        rows.append(row)
    frame = pd.DataFrame(rows)
    frame.attrs.update(machine=run.header["machine"], complete=run.complete)
    return frame


def _records(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):  # no newline after it: the write was cut off
                return
            raise ValueError(f"{path}:{number} is not JSON: {error}") from error
