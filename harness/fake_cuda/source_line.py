"""Names the line of the caller's code that led to an event inside torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

import torch

_TORCH = str(Path(torch.__file__).parent) + "/"
_HARNESS = str(Path(__file__).parent.parent)
_OWN = tuple(f"{_HARNESS}/{name}" for name in ("fake_cuda/", "memory/", "custom_ops.py", "compile_watch.py"))
_STANDARD = str(Path(os.__file__).parent) + "/"
_PLUMBING = ("contextlib.py", "functools.py")


def source_line() -> str:
    """``file.py:12 in function`` of the innermost frame that is neither torch's, Python's nor this package's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_internal(frame.f_code.co_filename):
            return _describe(frame, frame.f_lineno)
        frame = frame.f_back
    return "?"


def raising_line(error: BaseException) -> str:
    """The same for the place where an exception came from."""
    trace, found = error.__traceback__, source_line()
    while trace is not None:
        if not is_internal(trace.tb_frame.f_code.co_filename):
            found = _describe(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next
    return found


def is_internal(file: str) -> bool:
    """Whether a source file is torch's, this package's, or the standard library's."""
    standard = file.startswith(_STANDARD) and "-packages/" not in file
    return standard or file.startswith((_TORCH, "<", *_OWN))


def _describe(frame: FrameType, line: int) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"


def importer_is_torch() -> bool:
    """Whether the code that caused the event at hand is torch itself: its lazy imports are not the caller's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<frozen importlib", *_OWN)) and not file.endswith(_PLUMBING):
            return file.startswith(_TORCH) or "/sympy/" in file or "/mpmath/" in file
        frame = frame.f_back
    return False
