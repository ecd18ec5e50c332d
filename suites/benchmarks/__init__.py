"""asv benchmarks of every registered suite: ``gpu`` (device time) and ``cpu`` (wall clock), one class an operation.

asv imports this package as ``benchmarks`` in processes of its own. The checkout it lies in goes to the front of the
path, so that what is measured under a commit's name is that checkout, not another one installed in this environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if sys.path[:1] != [str(ROOT)]:
    sys.path.insert(0, str(ROOT))
