"""The child process of ``harness.isolate``: reads a task a line, answers with a verdict a line."""

from __future__ import annotations

import json
import os
import sys

from harness.execute import execute
from harness.plan import Task
from harness.process import is_retired


def main() -> None:
    """``python -m harness.worker FD``: tasks on stdin, verdicts on the inherited descriptor FD."""
    replies = int(sys.argv[1])
    # a kernel that reads stdin (a forgotten breakpoint, say) finds it empty, and not the next task
    tasks = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for line in tasks:
        verdict = execute(Task.from_dict(json.loads(line)))
        data = (json.dumps({"verdict": verdict.as_dict(), "retired": is_retired()}) + "\n").encode()
        try:
            while data:
                data = data[os.write(replies, data) :]
        except BrokenPipeError:  # the run was killed; there is nobody to tell
            return


if __name__ == "__main__":
    main()
