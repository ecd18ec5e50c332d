"""Addresses that can be compared and tested for alignment, and cannot reach a kernel."""

from __future__ import annotations

from typing import Any


class NoMemoryError(BufferError):
    """A pretended tensor or stream was about to be handed to a kernel."""

    def __init__(self) -> None:
        super().__init__("a pretended tensor or stream has nothing to hand to a kernel")


class PretendPointer:
    """Stands in for ``data_ptr()`` and for stream handles.

    Kernel code asks an address two harmless things: is it aligned, is it that of another tensor. Anything else is
    a launch, and with a GPU in the machine a launch on a made-up address would really happen: so the conversion to
    an integer, which every launcher needs, is refused.
    """

    __slots__ = ("_value",)

    def __init__(self, value: int) -> None:
        self._value = value

    def __mod__(self, other: int) -> int:
        return self._value % other

    def __and__(self, other: int) -> int:
        return self._value & other

    def __add__(self, other: int) -> PretendPointer:
        return PretendPointer(self._value + other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._value - other._value if isinstance(other, PretendPointer) else PretendPointer(self._value - other)

    def __eq__(self, other: object) -> bool:
        return self._value == (other._value if isinstance(other, PretendPointer) else other)

    def __lt__(self, other: Any) -> bool:
        return bool(self._value < (other._value if isinstance(other, PretendPointer) else other))

    def __hash__(self) -> int:
        return hash(self._value)

    def __bool__(self) -> bool:
        return self._value != 0

    def __index__(self) -> int:
        raise NoMemoryError

    __int__ = __index__

    def __repr__(self) -> str:
        return f"PretendPointer({self._value:#x})"
