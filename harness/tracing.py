"""What torch relies on when it traces a call: what custom operators declare, and that the call can be traced at all.

``torch.compile``, CUDA-graph trees and export believe an operator's schema and its fake. A mutation that the schema
does not name, a result that is a view of an argument, or a fake with other strides gives wrong results there while
every eager test passes (pytorch#182006, #182328, vllm#44130).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_OF_TORCH = frozenset(
    {
        "aten",
        "prim",
        "prims",
        "_c10d_functional",
        "c10d",
        "inductor",
        "higher_order",
        "profiler",
        "debugprims",
        "rngprims",
    }
)


class OperatorWatch(TorchDispatchMode):
    """Holds every custom operator that runs inside against its own declaration; ``problems`` has what was untrue.

    Real tensors only. Each operator is examined once for each combination of shapes, strides and dtypes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.seen: set[Any] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in _OF_TORCH:
            return func(*args, **kwargs)
        key = (str(func), *(_look(leaf) for leaf in tree_leaves((args, kwargs))))
        if key in self.seen:
            return func(*args, **kwargs)
        self.seen.add(key)
        given = _named(func, args, kwargs)
        before = {name: value.clone() for name, value in given.items()}
        with warnings.catch_warnings():  # torch warns of the aliases that are reported here
            warnings.simplefilter("ignore", UserWarning)
            fake = _fake_results(func, args, kwargs)
            result = func(*args, **kwargs)
        self._mutations(func, given, before)
        self._aliases(func, given, result)
        self._fakes(func, fake, result)
        return result

    def _mutations(self, func: Any, given: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> None:
        declared = {
            argument.name
            for argument in func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        }
        for name, value in given.items():
            if name.partition("[")[0] not in declared and not _same(value, before[name]):
                self._tell(f"{func} writes its argument {name}, which its schema does not say (mutates_args)")

    def _aliases(self, func: Any, given: dict[str, torch.Tensor], result: Any) -> None:
        if any(returned.alias_info is not None for returned in func._schema.returns):
            return
        owners = {value.untyped_storage()._cdata: name for name, value in given.items() if value.numel()}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata in owners:
                owner = owners[leaf.untyped_storage()._cdata]
                self._tell(f"{func} returns (a view of) its argument {owner}, which its schema does not say")

    def _fakes(self, func: Any, fake: Any, result: Any) -> None:
        if isinstance(fake, Exception):
            text = (str(fake).strip().splitlines() or ["(no message)"])[0][:120]
            self._tell(f"{func} has no fake that works for this call: {type(fake).__name__}: {text}")
            return
        pretended, real = tree_leaves(fake), tree_leaves(result)
        if len(pretended) != len(real):
            self._tell(f"{func}: its fake returns {len(pretended)} values, the operator {len(real)}")
            return
        for number, (said, found) in enumerate(zip(pretended, real, strict=True)):
            if isinstance(found, torch.Tensor) and _known(said) and _look(said) != _look(found):
                which = f" (result {number})" if len(real) > 1 else ""
                self._tell(f"{func}: its fake says {_words(said)}, the operator returned {_words(found)}{which}")

    def _tell(self, line: str) -> None:
        if line not in self.problems:
            self.problems.append(line)


def trace_whole(call: Callable[..., Any], inputs: dict[str, Any]) -> Any:
    """The result of ``call`` under ``torch.compile(fullgraph=True)``; raises what the tracer raises.

    The backend runs the traced operators as they are, functionalised: it finds what cannot be traced and what the
    operators' declarations get wrong, and compiles nothing.
    """
    torch._dynamo.reset()
    compiled = torch.compile(lambda **arguments: call(**arguments), fullgraph=True, backend="aot_eager", dynamic=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return compiled(**inputs)
    finally:
        torch._dynamo.reset()


def _fake_results(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with FakeTensorMode() as mode:
        fakes, fake_kwargs = tree_map(
            lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
        )
        try:
            return func(*fakes, **fake_kwargs)
        except Exception as error:
            return error


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensor arguments by their names in the schema; those of a list get an index."""
    names = [argument.name for argument in func._schema.arguments]
    found = {}
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        for index, leaf in enumerate(leaves):
            found[name if isinstance(value, torch.Tensor) else f"{name}[{index}]"] = leaf
    return found


def _look(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf if isinstance(leaf, (bool, int, float, str, type(None))) else type(leaf).__name__
    # strides of an axis of size 1, and of nothing, say nothing
    strides = tuple(step for size, step in zip(leaf.shape, leaf.stride(), strict=True) if size > 1 and leaf.numel())
    return tuple(leaf.shape), strides, leaf.dtype, leaf.device.type


def _known(value: Any) -> bool:
    """Whether a fake result's sizes are numbers: one that depends on data says nothing of them."""
    return isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in (*value.shape, *value.stride()))


def _words(value: torch.Tensor) -> str:
    return f"{tuple(value.shape)} with strides {value.stride()}, {value.dtype}, {value.device.type}".replace(
        "torch.", ""
    )


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one look hold the same bytes."""
    x, y = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return bool(torch.equal(x, y))
