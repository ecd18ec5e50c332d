"""Triton launches are recorded, never run. Uses a stand-in for Triton, so that it needs none."""

from __future__ import annotations

import importlib.machinery
import sys
import types

import pytest
import torch

from harness.fake_cuda import Severity, fake_cuda, lint_capture


class JITFunction:
    """As much of Triton's class as a launch goes through."""

    def __init__(self, name):
        self.__name__ = name
        self.arg_names = ["x", "y", "n"]

    def __getitem__(self, grid):
        return lambda *args, **options: self.run(*args, grid=grid, warmup=False, **options)

    def run(self, *args, grid, warmup, **options):
        raise AssertionError("a kernel was really launched")


class Config:
    def all_kwargs(self):
        return {"BLOCK": 128, "num_warps": 4}


class Autotuner:
    def __init__(self, fn):
        self.fn, self.arg_names, self.keys, self.configs = fn, fn.arg_names, ["n"], [Config(), Config()]

    __getitem__ = JITFunction.__getitem__

    def run(self, *args, grid, **options):
        raise AssertionError("the autotuner was really run")


@pytest.fixture
def triton(monkeypatch):
    names = {"triton": {}, "triton.runtime": {}}
    names["triton.runtime.jit"] = {"JITFunction": JITFunction}
    names["triton.runtime.autotuner"] = {"Autotuner": Autotuner}
    for name, content in names.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    with fake_cuda():
        yield torch.randn(8, 64, device="cuda")


kernel = JITFunction("double")
tuned = Autotuner(kernel)


def rules(report):
    return {finding.rule for finding in report.of(Severity.BREAK)}


def test_a_warm_kernel_is_recorded_and_safe(triton):
    def launch(x):
        y = torch.empty_like(x)
        kernel[(4,)](x, y, x.numel(), BLOCK=128)
        return y

    report = lint_capture(launch, (triton,))
    assert report.verdict == "ok"
    assert report.op_trace[-1] == "triton:double"
    assert report.device_ops == 1


def test_a_new_specialisation_in_the_captured_call_is_a_break(triton):
    sizes = iter((512, 512, 511, 1))

    def launch(x):
        kernel[(4,)](x, x, next(sizes), BLOCK=128)

    assert rules(lint_capture(launch, (triton,))) == {"jit-in-capture"}


def test_another_value_of_the_same_kind_compiles_nothing(triton):
    sizes = iter((512, 512, 1024, 2048))

    def launch(x):
        kernel[(4,)](x, x, next(sizes), BLOCK=128)

    report = lint_capture(launch, (triton,))
    assert rules(report) == set()
    assert "baked-constant" in {finding.rule for finding in report.findings}


def test_an_autotuner_meeting_a_new_key_is_a_break(triton):
    sizes = iter((512, 512, 1024, 2048))

    def launch(x):
        tuned[(4,)](x, x, next(sizes))

    assert rules(lint_capture(launch, (triton,))) == {"jit-in-capture"}
    assert lint_capture(lambda x: tuned[(4,)](x, x, 512), (triton,)).verdict == "ok"


def test_a_cpu_tensor_given_to_a_kernel_is_a_break(triton):
    def launch(x):
        kernel[(4,)](torch.ones(8, 64), x, 512, BLOCK=128)

    assert rules(lint_capture(launch, (triton,))) == {"host-pointer"}


def test_a_hidden_buffer_given_to_a_kernel_is_named(triton):
    table = torch.zeros(64, device="cuda")
    report = lint_capture(lambda x: kernel[(4,)](x, table, 512, BLOCK=128), (triton,))
    assert {finding.rule for finding in report.findings} == {"hidden-input"}


_RUN = JITFunction.run


def test_the_real_methods_are_back_after_the_block():
    assert JITFunction.run is _RUN
    with pytest.raises(AssertionError, match="really"):
        kernel[(1,)](1)
