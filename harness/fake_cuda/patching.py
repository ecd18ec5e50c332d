"""Replaces attributes, and puts every one of them back."""

from __future__ import annotations

from types import TracebackType
from typing import Any

_ABSENT = object()


class Patches:
    """A stack of replaced attributes; leaving the block restores them in reverse order, also after an exception."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace ``owner.name``. What is restored is the entry of ``owner`` itself, not one it inherits."""
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def set_if_there(self, owner: Any, name: str, value: Any) -> None:
        """The same for a name that only some torch versions have."""
        if hasattr(owner, name):
            self.set(owner, name, value)

    def __enter__(self) -> Patches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            owner, name, value = self._undo.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
