"""Arguments: views, strides, alignment, aliases and odd dtypes give the right result or a clear error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from harness.gates.base import Gate
from harness.suite import Inputs
from harness.trial import Trial, clone, same_bits, tensors_of
from harness.verdict import Findings

CLEAR = (ValueError, TypeError, NotImplementedError, RuntimeError)
"""Errors that tell a caller about an argument. A KeyError, IndexError or ZeroDivisionError tells of an accident."""

_ACCIDENTS = ("CUDA error", "internal assert", "INTERNAL ASSERT", "misaligned address", "illegal memory")


@dataclass(frozen=True)
class Variant:
    """One way to pass an argument: ``given`` to the implementation, ``plain`` the same values laid out plainly.

    ``must_work`` when the contract promises it; otherwise a clear error is as good. ``plain`` is None where the
    values themselves cannot be had plainly (a wrong dtype): then the reference is asked.
    """

    label: str
    given: Inputs
    plain: Inputs | None
    must_work: bool


class Arguments(Gate):
    """Each awkward way to pass an argument ends in the right result or a clear error, never in a third way."""

    name: ClassVar[str] = "arguments"
    worlds: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    may_crash: ClassVar[bool] = True

    def judge(self, trial: Trial, findings: Findings) -> None:
        inputs = trial.inputs()
        trial.call(clone(inputs))
        findings.check(True, "the plain call")  # one that raises is a FAIL before this line
        refused = []
        for variant in _variants(trial, inputs):
            try:
                outputs = clone(trial.call(variant.given))
            except Exception as error:
                refused.append(f"{variant.label}: {type(error).__name__}: {_headline(error)}")
                self._judge_error(variant, error, findings)
                continue
            self._judge_outputs(trial, variant, outputs, findings)
        for line in refused:
            findings.note(f"refused: {line}")
        findings.measure("refused", len(refused), "", "variants answered with an error")

    def _judge_error(self, variant: Variant, error: Exception, findings: Findings) -> None:
        found = f"{type(error).__name__}: {_headline(error)}"
        if variant.must_work:
            findings.check(False, f"{variant.label}: promised by the contract, and refused", "the right result", found)
            return
        text = str(error)
        clear = isinstance(error, CLEAR) and bool(text.strip()) and not any(word in text for word in _ACCIDENTS)
        findings.check(clear, f"{variant.label}: fails by accident", "a clear error or the right result", found)

    def _judge_outputs(self, trial: Trial, variant: Variant, outputs: dict[str, Any], findings: Findings) -> None:
        if variant.plain is None:
            try:
                expected = trial.reference(variant.given)
            except Exception as error:
                findings.check(
                    False,
                    f"{variant.label}: accepted what the reference cannot compute",
                    "a clear error",
                    f"a result; the reference: {type(error).__name__}: {_headline(error)}",
                )
                return
            trial.compare(outputs, expected, findings, f"{variant.label}: ")
            return
        plain = trial.call(clone(variant.plain))
        if all(same_bits(value, plain[name]) for name, value in tensors_of(outputs).items()):
            findings.check(True, variant.label)
            return
        # other strides may mean another order of summation: other bits, and still right by the reference
        trial.compare(outputs, trial.reference(variant.plain), findings, f"{variant.label}: ")


def _variants(trial: Trial, inputs: Inputs) -> Iterator[Variant]:
    for name, tensor in tensors_of(inputs).items():
        must = name in trial.contract.strided
        for label, view in _layouts(tensor):
            yield Variant(f"{name} {label}", {**clone(inputs), name: view}, {**inputs, name: _plain(view)}, must)
        for dtype in _other_dtypes(tensor.dtype):
            label = f"{name} as {dtype}".replace("torch.", "")
            yield Variant(label, {**clone(inputs), name: tensor.to(dtype)}, None, False)
        if trial.world.name == "cuda" and tensor.dim():
            yield Variant(f"{name} on the CPU", {**clone(inputs), name: tensor.cpu()}, inputs, False)
    yield from _empty_batch(trial, inputs)
    yield from _aliases(inputs)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by size: layouts are made of bit patterns, since 8-bit floats know neither flip nor stack."""


def _layouts(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Views with the tensor's values (or, expanded, those of its first row) in other memory layouts."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return
    for label, view in _word_layouts(tensor.contiguous().view(_WORDS[tensor.element_size()])):
        yield label, view.view(tensor.dtype)


def _word_layouts(words: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    shape, last = words.shape, words.shape[-1]
    # between the rows of a slice: an ordinary number (48.5 in bf16 and fp32) that spoils a result which reads it
    filler = int.from_bytes(b"\x42" * words.element_size(), "little")
    wide = torch.full((*shape[:-1], last + 3), filler, dtype=words.dtype, device=words.device)
    wide[..., :last] = words
    yield "sliced from wider rows (row pitch not a multiple of 16 bytes)", wide[..., :last]
    flat = torch.full((words.numel() + 1,), filler, dtype=words.dtype, device=words.device)
    flat[1:] = words.reshape(-1)
    yield "at a storage offset of one element (misaligned)", flat[1:].view(shape)
    if words.dim() >= 2:
        yield "transposed in memory", words.transpose(-1, -2).contiguous().transpose(-1, -2)
        yield "every second row of a larger tensor", torch.stack((words, words.flip(0)), 1)[:, 0]
        if shape[0] > 1:
            yield "expanded along the first axis (stride 0)", words[:1].expand(shape)
    yield "every second element (last stride 2)", torch.stack((words, words), -1)[..., 0]


def _plain(view: torch.Tensor) -> torch.Tensor:
    return view.clone(memory_format=torch.contiguous_format)


def _other_dtypes(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    if dtype in (torch.float32, torch.float16, torch.bfloat16):
        return (torch.float64, torch.int32)
    if dtype is torch.int64:
        return (torch.int32,)
    if dtype is torch.int32:
        return (torch.int64,)
    if dtype is torch.uint8:
        return (torch.int32,)
    return ()


def _empty_batch(trial: Trial, inputs: Inputs) -> Iterator[Variant]:
    rows = trial.contract.rows
    if rows and inputs[rows[0]].shape[0]:
        yield Variant("zero rows", {**clone(inputs), **{name: inputs[name][:0] for name in rows}}, None, False)


def _aliases(inputs: Inputs) -> Iterator[Variant]:
    tensors = list(tensors_of(inputs).items())
    for position, (name, tensor) in enumerate(tensors):
        for other, twin in tensors[position + 1 :]:
            if tensor.shape == twin.shape and tensor.dtype == twin.dtype and tensor.dim():
                shared = tensor.clone()
                yield Variant(
                    f"{name} and {other} the same tensor",
                    {**clone(inputs), name: shared, other: shared},
                    {**inputs, name: tensor, other: tensor.clone()},
                    False,
                )


def _headline(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["(no message)"])[0][:160]
