"""A museum of planted faults: implementations that must fail a gate, and awkward ones that must pass them all.

An exhibit is an ordinary implementation of an ordinary suite. The gates do not know this package; it only says what
they are expected to find, runs them, and lays their verdicts beside what common practice would have said.
"""

from harness.museum.exhibit import Awkward, Exhibit, Museum, open_museum
from harness.museum.judged import Judged, judge
from harness.museum.practices import PRACTICES

__all__ = ["PRACTICES", "Awkward", "Exhibit", "Judged", "Museum", "judge", "open_museum"]
