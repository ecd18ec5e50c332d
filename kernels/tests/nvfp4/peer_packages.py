"""Loading the peers that check us: a missing one skips, or fails where it is required."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest


def oracle(name: str, load: Callable[[], Any]) -> Any:
    """load(), or skip; with KERNEL_HARNESS_REQUIRE_ORACLES=1 a missing oracle is a failure, never a silent skip."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load()
    except Exception as error:
        message = f"oracle {name} is not available: {type(error).__name__}: {error}"
        if os.environ.get("KERNEL_HARNESS_REQUIRE_ORACLES") == "1":
            pytest.fail(message)
        pytest.skip(message)
