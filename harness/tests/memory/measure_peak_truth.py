"""Measures the peak cases on a real GPU and writes the truth file.

    python -m harness.tests.memory.measure_peak_truth      # alone on the device; about 5 GiB, under a minute

A first call warms up what is taken once and kept (cuBLAS workspace, lazily loaded modules); it is subtracted. The
garbage collector is off during the measured call, so that lifetimes are those of the code.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

from harness.memory import PeakReport, PeakTracker
from harness.tests.memory.peak_cases import CASES, TRUTH_FILE, PeakCase


def measure(case: PeakCase) -> dict[str, int]:
    """Bytes over what was allocated before the inputs were made."""
    cuda = torch.cuda
    inputs = case.make("cuda")
    result = case.fn(*inputs)
    cuda.synchronize()
    del inputs, result
    gc.collect()
    cuda.empty_cache()
    base, base_requested = cuda.memory_allocated(), cuda.memory_stats()["requested_bytes.all.current"]
    base_reserved = cuda.memory_reserved()
    inputs = case.make("cuda")
    cuda.synchronize()
    gc.collect()
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    start = cuda.memory_allocated() - base
    gc.disable()
    result = case.fn(*inputs)
    gc.enable()
    cuda.synchronize()
    stats = cuda.memory_stats()
    found = {
        "start": start,
        "allocated": cuda.max_memory_allocated() - base,
        "requested": stats["requested_bytes.all.peak"] - base_requested,
        "reserved": cuda.max_memory_reserved(),
        "reserved_before": base_reserved,
    }
    del inputs, result
    gc.collect()
    cuda.empty_cache()
    return found


def predict(case: PeakCase) -> PeakReport:
    """The same with fake tensors; inside ``fake_cuda``."""
    inputs = case.make("cuda")
    with PeakTracker(inputs) as tracker:
        result = case.fn(*inputs)
    report = tracker.report()
    del result
    return report


def write(path: Path, measured: dict[str, dict[str, int]], about: dict[str, Any]) -> None:
    """Merge into the file, one case a line."""
    old = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    cases = {name: measured.get(name, old["cases"].get(name, {"allocated": None})) for name in CASES}
    head = {"schema": 1, **{key: old[key] for key in ("fingerprint", "date", "what") if key in old}, **about}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in cases.items())
    path.write_text(
        json.dumps({**head, "cases": 0}, indent=1).replace('"cases": 0', '"cases": {\n' + lines + "\n }") + "\n"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=TRUTH_FILE)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no GPU is visible: nothing measured", file=sys.stderr)
        return 3
    from harness.fake_cuda import fake_cuda
    from harness.fingerprint import fingerprint

    measured = {}
    wrong = 0
    for name, case in CASES.items():
        measured[name] = found = measure(case)
        properties = torch.cuda.get_device_properties(0)
        with fake_cuda((properties.major, properties.minor), sm_count=properties.multi_processor_count):
            report = predict(case)
        difference = report.peak_bytes - found["allocated"]
        bad = abs(difference) > 2048 if case.exact else difference > 0
        wrong += bad
        bound = "at least" if report.lower_bound else "equals"
        print(
            f"{name:38s} measured {found['allocated']:>14,d}  predicted {bound:8s} {report.peak_bytes:>14,d}"
            f"  difference {difference:>+13,d}{'  <<<' if bad else ''}",
            flush=True,
        )
    machine = fingerprint()
    about = {
        "fingerprint": {key: machine[key] for key in ("gpu", "driver", "torch") if key in machine},
        "date": datetime.date.today().isoformat(),
    }
    write(options.out, measured, about)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
