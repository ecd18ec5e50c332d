"""``python -m harness.asv machine | write | compare``: see ``docs/asv.md``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from harness.asv.compare import FACTOR, Change, compare
from harness.asv.machine import describe, register_machine
from harness.asv.stored import find_result
from harness.asv.write import Run, write_result
from harness.runner import Exit

RESULTS = Path("baselines/asv")


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 nothing slower, 1 slower, 2 wrong usage, 3 not comparable or nothing compared."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, KeyError, OSError) as error:
        print(f"harness.asv: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        # results that are not there were not compared
        return Exit.INVALID if isinstance(error, FileNotFoundError) else Exit.USAGE


def _compare(options: argparse.Namespace) -> int:
    before = find_result(options.results, options.machine, _commit(options.before), options.env)
    after = find_result(options.results, options.machine, _commit(options.after), options.env)
    result = compare(before, after, factor=options.factor, waived=options.waive)
    for row in result.rows:
        if options.all or row.change is not Change.SAME:
            print(row)
    code, sentence = result.exit_code()
    print(sentence)
    return code


def _write(options: argparse.Namespace) -> int:
    data = json.loads(options.numbers.read_text())
    samples = {
        bench: {tuple(entry["params"]): entry["samples"] for entry in entries}
        for bench, entries in data["samples"].items()
    }
    run = Run(data["machine"], data["commit"], data["date_ms"], data["env_name"], samples)
    print(write_result(options.results, run, json.loads((options.results / "benchmarks.json").read_text())))
    return Exit.OK


def _machine(options: argparse.Namespace) -> int:
    described = describe(options.name, options.clocks)
    if options.register:
        register_machine(described)
    print(json.dumps(described, indent=4, sort_keys=True))
    return Exit.OK


def _commit(name: str) -> str:
    """The hash a git name stands for; where there is no git or no such name, the text itself (a hash, or part)."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return name
    return found.stdout.strip() or name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.asv", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="machine|write|compare")

    machine = commands.add_parser("machine", help="describe this machine for asv, GPU and libraries included")
    machine.add_argument("--name", help="name to file results under; made from the GPU by default")
    machine.add_argument("--clocks", default="default", choices=["default", "locked"])
    machine.add_argument("--register", action="store_true", help="enter it in ~/.asv-machine.json")
    machine.set_defaults(run=_machine)

    write = commands.add_parser("write", help="write an asv result file from numbers measured elsewhere")
    write.add_argument("numbers", type=Path, help="JSON: machine, commit, date_ms, env_name, samples")
    write.add_argument("--results", type=Path, default=RESULTS)
    write.set_defaults(run=_write)

    versus = commands.add_parser("compare", help="compare two commits; exit 0, 1 slower, 3 not comparable")
    versus.add_argument("before", help="commit of the baseline")
    versus.add_argument("after", help="commit to judge")
    versus.add_argument("--machine", required=True)
    versus.add_argument("--env", help="environment name, where a commit has results of several")
    versus.add_argument("--factor", type=float, default=FACTOR)
    versus.add_argument("--waive", action="append", default=[], metavar="KEY", help="machine parameter that may differ")
    versus.add_argument("--results", type=Path, default=RESULTS)
    versus.add_argument("--all", action="store_true", help="print unchanged benchmarks too")
    versus.set_defaults(run=_compare)
    return parser


if __name__ == "__main__":
    sys.exit(main())
