"""Asks a real GPU what it does with every capture case, and writes the truth file.

    python -m harness.tests.fake_cuda.measure_capture_truth            # on a GPU: about two minutes
    python -m harness.tests.fake_cuda.measure_capture_truth --unmeasured   # anywhere: entries for new cases

Each case runs in a fresh process, since a failed capture can leave the device unusable: two warm-up calls on a side
stream, one call under ``set_sync_debug_mode("error")`` (torch's own detector, for comparison), then a capture and,
if it succeeds, a replay on changed input that is compared with an eager call. Exit code 1 if a label is refuted.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from harness.tests.fake_cuda.capture_cases import CASES, STATE, TRUTH_FILE, CaptureCase

_WHAT = (
    "outcome: what torch.cuda.graph did with the case (break: the capture or its replay raised; captures; null: not "
    "measured yet). label: what the lint should say. refuted_label: a first label, from reading torch, that the GPU "
    "refuted."
)


def measure(case: CaptureCase) -> dict[str, Any]:
    """What this process's GPU does with one case. ``"ok"`` or the first line of the error, step by step."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    STATE.reset()
    x = torch.randn(8, 64, device="cuda", dtype=torch.bfloat16)
    if case.registers_generator:
        STATE.generator = torch.Generator(device="cuda")
    found: dict[str, Any] = {"eager": "ok"}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            found["eager"] = _attempt(lambda: case.fn(x), found["eager"])
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()

    torch.cuda.set_sync_debug_mode("error")
    found["sync_debug"] = _attempt(lambda: case.fn(x))
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()

    graph = torch.cuda.CUDAGraph()
    if case.registers_generator:
        graph.register_generator_state(STATE.generator)
    results: list[Any] = []
    reasons: list[str] = []

    def inside() -> None:
        results.append(case.fn(x))

    def capture() -> None:
        with torch.cuda.graph(graph):
            reasons.append(_attempt(inside))  # before the end of a broken capture raises an error of its own

    ended = _attempt(capture)
    found["capture"] = reasons[0] if reasons and reasons[0] != "ok" else ended
    if found["capture"] == "ok":
        found["replay"] = _attempt(lambda: _replay(graph, x))
        found["replay_equals_eager"] = _equal(results[0], case, x) if found["replay"] == "ok" else None
    raised = found["capture"] != "ok" or found.get("replay") != "ok"
    return {"outcome": "break" if raised else "captures", **found}


def _attempt(call: Any, before: str = "ok") -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:160]
    return before


def _replay(graph: torch.cuda.CUDAGraph, x: torch.Tensor) -> None:
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()


def _equal(result: Any, case: CaptureCase, x: torch.Tensor) -> bool | None:
    """Whether the replay on new input gave what an eager call gives on it; None if that cannot be compared."""
    try:
        replayed = [leaf.clone() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        eager = [leaf for leaf in tree_leaves(case.fn(x)) if isinstance(leaf, torch.Tensor)]
        pairs = list(zip(replayed, eager, strict=True))
        return bool(pairs) and all(
            torch.equal(one.float().nan_to_num(7), two.float().nan_to_num(7)) for one, two in pairs
        )
    except Exception:
        return None


# -- a fresh process a case


def _child(name: str, pipe: Connection) -> None:
    case = CASES[name]
    missing = case.missing()
    try:
        found = {"outcome": None, "capture": f"not run: {missing} is not installed"} if missing else measure(case)
    except Exception as error:  # the device could not be used: says nothing about the case
        found = {"outcome": None, "capture": f"not measured: {type(error).__name__}: {error}"}
    pipe.send(found)
    pipe.close()
    os._exit(0)  # without the teardown of a context that a failed capture may have broken


def measure_in_process(name: str, context: Any, timeout: float) -> dict[str, Any]:
    """``measure`` in a process of its own; one that dies or hangs is a break with the reason."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(name, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(timeout):
            return {"outcome": "break", "capture": f"hung for {timeout:.0f} s"}
        found: dict[str, Any] = receiver.recv()
        return found
    except EOFError:
        process.join(5)
        return {"outcome": "break", "capture": f"the process died with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join(5)


def measure_all(names: list[str], jobs: int, timeout: float) -> dict[str, dict[str, Any]]:
    """All cases, ``jobs`` at a time. torch is imported once, in a server process that never touches the GPU."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__spec__.name if __spec__ else __name__])
    found = {}
    with ThreadPoolExecutor(jobs) as pool:
        for name, result in zip(
            names, pool.map(lambda name: measure_in_process(name, context, timeout), names), strict=True
        ):
            found[name] = result
            print(_line(CASES[name], result), flush=True)
    return found


def _line(case: CaptureCase, result: dict[str, Any]) -> str:
    flag = "<<<" if _refuted(case, result) else ""
    replay = {True: "replay equal", False: "replay differs"}.get(result.get("replay_equals_eager"), "")
    return f"{case.name:28s} label {case.label:6s} {result['outcome']!s:8s} {flag:3s} {result['capture']:.90s} {replay}"


def _refuted(case: CaptureCase, result: dict[str, Any]) -> bool:
    return result["outcome"] is not None and (result["outcome"] == "break") != (case.label == "break")


# -- the truth file


def write(path: Path, measured: dict[str, dict[str, Any]], about: dict[str, Any]) -> None:
    """Merge into the file: one case a line, so that a change of outcome is one line of a diff."""
    old = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    entries = []
    for name in sorted(CASES):
        kept = {key: value for key, value in old["cases"].get(name, {}).items() if key != "label"}
        entry = {"label": CASES[name].label, **({"outcome": None} | kept), **measured.get(name, {})}
        if entry["outcome"] is None and kept.get("outcome"):
            entry["outcome"] = kept["outcome"]  # not run this time (a module is missing): the old outcome stands
        entries.append(f"  {json.dumps(name)}: {json.dumps(entry)}")
    head = {"schema": 1, **{key: old[key] for key in ("fingerprint", "date") if key in old}, **about, "what": _WHAT}
    body = json.dumps({**head, "cases": 0}, indent=1)
    text = body.replace('"cases": 0', '"cases": {\n' + ",\n".join(entries) + "\n }")
    json.loads(text)
    path.write_text(text + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=TRUTH_FILE)
    parser.add_argument("--only", nargs="*", default=[], help="names of cases; default: all")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=60, help="seconds a case")
    parser.add_argument("--unmeasured", action="store_true", help="only add entries for new cases; needs no GPU")
    options = parser.parse_args(arguments)
    if options.unmeasured:
        write(options.out, {}, {})
        return 0
    if not torch.cuda.is_available():
        print("no GPU is visible: nothing measured", file=sys.stderr)
        return 3
    from harness.fingerprint import fingerprint

    machine = fingerprint()
    about = {
        "fingerprint": {key: machine[key] for key in ("gpu", "driver", "torch") if key in machine},
        "date": datetime.date.today().isoformat(),
    }
    found = measure_all(options.only or sorted(CASES), options.jobs, options.timeout)
    write(options.out, found, about)
    breaks = [name for name, result in found.items() if result["outcome"] == "break"]
    seen = sum(found[name].get("sync_debug", "ok") != "ok" for name in breaks)
    refuted = [name for name, result in found.items() if _refuted(CASES[name], result)]
    missing = [name for name, result in found.items() if result["outcome"] is None]
    print(f"not measured: {missing}")
    print(f"{len(found)} cases, {len(breaks)} breaks (set_sync_debug_mode sees {seen}), labels refuted: {refuted}")
    return 1 if refuted else 0


if __name__ == "__main__":
    sys.exit(main())
