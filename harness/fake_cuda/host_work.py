"""Host work that belongs before a capture: imports, programs started, libraries loaded, code generated."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.fake_cuda.findings import Severity
from harness.fake_cuda.op_call import Hit
from harness.fake_cuda.source_line import importer_is_torch

_PROGRAMS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"})
_WHAT = {"ctypes.dlopen": "loads a library", "import": "imports", "compile": "generates Python code"}

_tell: Callable[[Hit], None] | None = None
_hooked = False


@contextmanager
def watch_host_work(tell: Callable[[Hit], None]) -> Iterator[None]:
    """``tell`` hears of every such event inside the block.

    All of it is done when the graph is captured and not when it is replayed, and a cold first call takes seconds. An
    audit hook cannot be removed: it is installed once and asleep outside such blocks.
    """
    global _tell, _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    previous, _tell = _tell, tell
    try:
        yield
    finally:
        _tell = previous


def _audit(event: str, args: tuple[Any, ...]) -> None:
    global _tell
    if _tell is None or (event not in _PROGRAMS and event not in _WHAT):
        return
    tell, _tell = _tell, None  # what happens while an event is judged is not the caller's
    try:
        if event == "import" and args[0] in sys.modules:
            return
        if event in ("import", "compile") and importer_is_torch():
            return
        if event in _PROGRAMS:
            program = args[0] or (args[1][0] if len(args) > 1 and args[1] else "?")
            what = f"starts a program ({os.path.basename(os.fsdecode(program))}) inside the call"
        else:
            subject = "" if event == "compile" else f" {str(args[0])[:60]!r}"
            what = f"{_WHAT[event]}{subject} inside the call"
        tell(("host-work", Severity.HAZARD, f"{what}: done at capture, not in a replay"))
    finally:
        _tell = tell
