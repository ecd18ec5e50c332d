"""``python -m suites.models``: every shape, one a line; with ``--markdown`` the text of docs/shapes.md."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence

from suites.models.deepseek import MODELS
from suites.models.experts import expert_gemms
from suites.models.linears import TP, linears
from suites.models.tables import markdown


def main(argv: Sequence[str] | None = None) -> int:
    """Print to stdout; 0, or 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m suites.models", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print docs/shapes.md")
    parser.add_argument("--model", choices=tuple(MODELS), help="only this model")
    parser.add_argument("--tp", type=int, help=f"only this tensor-parallel size (default: {TP})")
    args = parser.parse_args(argv)
    if args.markdown:
        print(markdown(), end="")
        return 0
    try:
        for line in _lines(args.model, args.tp):
            print(line)
    except ValueError as error:
        parser.error(str(error))
    return 0


def _lines(model: str | None, tp: int | None) -> list[str]:
    lines = []
    for name in MODELS if model is None else (model,):
        for size in TP if tp is None else (tp,):
            for lin in linears(name, size):
                batch = f"  x{lin.groups}" if lin.groups > 1 else ""
                lines.append(f"{lin.id:40} N {lin.n:6}  K {lin.k:6}  {lin.sharding:10}  {lin.stored}{batch}")
            for gemm in expert_gemms(name, size, ep=1):
                lines.append(f"{gemm.id:40} N {gemm.n:6}  K {gemm.k:6}  experts     x{gemm.experts}")
    return lines


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends quietly
    raise SystemExit(main())
