"""What the tests of the harness share: a registry left as it was, and suite files on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import registry
from harness.inputs import REGIMES


@pytest.fixture
def clean_registry() -> Iterator[None]:
    """No suite is known at the start; suites, regimes, modules and import paths are as before at the end."""
    suites, regimes = dict(registry._suites), dict(REGIMES)
    modules, path = dict(sys.modules), list(sys.path)
    registry._suites.clear()
    yield
    registry._suites.clear()
    registry._suites.update(suites)
    REGIMES.clear()
    REGIMES.update(regimes)
    for name in set(sys.modules) - set(modules):
        if name.startswith("_suite_") or not hasattr(sys.modules[name], "__spec__"):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def suite_file(tmp_path: Path, clean_registry: None) -> Callable[..., Path]:
    """Write a suite file into the test's folder: ``suite_file(text, "suite_x.py")``."""

    def write(text: str, name: str = "suite_axpy.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write
