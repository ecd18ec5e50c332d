"""Takes composite operators apart where the dispatcher does not.

Normally a composite operator (``aten.to``, ``aten.linear``, ``aten.item``) never reaches a dispatch mode: the
dispatcher calls its parts. Inside a mode, where the kernel of a custom operator is run to look into it, it does; its
copies and temporaries would then be hidden.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def is_composite(func: Any) -> bool:
    """Whether ``func.decompose(*args, **kwargs)`` runs the operator as its parts, dispatched one by one."""
    return func.namespace == "aten" and bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    )
