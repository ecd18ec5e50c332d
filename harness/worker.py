"""The child process of ``harness.isolate``: reads a task a line, answers with a verdict a line."""

from __future__ import annotations

import json
import os
import sys

from harness.execute import execute
from harness.plan import Task


def main() -> None:
    """``python -m harness.worker FD``: tasks on stdin, verdicts on the inherited descriptor FD."""
    replies = int(sys.argv[1])
    for line in sys.stdin:
        verdict = execute(Task.from_dict(json.loads(line)))
        data = (json.dumps(verdict.as_dict()) + "\n").encode()
        while data:
            data = data[os.write(replies, data) :]


if __name__ == "__main__":
    main()
