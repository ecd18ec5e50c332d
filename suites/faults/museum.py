"""The whole museum: importing this module opens every room."""

from __future__ import annotations

import importlib
import pkgutil

from suites.faults import exhibits
from suites.faults.rooms import AWKWARD, EXHIBITS

for _module in pkgutil.iter_modules(exhibits.__path__):
    importlib.import_module(f"{exhibits.__name__}.{_module.name}")

__all__ = ["AWKWARD", "EXHIBITS"]
