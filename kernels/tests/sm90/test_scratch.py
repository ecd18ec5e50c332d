"""Scratch memory: one set a stream, none made inside a capture. CUDA is stood in for; nothing is allocated on a GPU."""

import pytest
import torch

pytest.importorskip("cutlass", reason="needs the CuTe DSL (nvidia-cutlass-dsl)")

from kernels.sm90 import scratch


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A device with a current stream and a capture state that the test sets."""
    state = {"stream": 1, "capturing": 0, "made": 0}

    def make(device: torch.device) -> object:
        assert not state["capturing"]
        state["made"] += 1
        return object()

    monkeypatch.setattr(scratch, "_make", make)
    monkeypatch.setattr(scratch, "_of_stream", {})
    monkeypatch.setattr(scratch, "_spares", {})
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: state["stream"], raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(state["capturing"]))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index=None: None)
    return state


DEVICE = torch.device("cuda", 0)


def test_one_set_a_stream(cuda: dict[str, int]) -> None:
    first = scratch.scratch(DEVICE)
    assert scratch.scratch(DEVICE) is first
    cuda["stream"] = 2
    assert scratch.scratch(DEVICE) is not first


def test_capture_takes_a_set_made_before(cuda: dict[str, int]) -> None:
    eager = scratch.scratch(DEVICE)
    made = cuda["made"]
    cuda.update(stream=7, capturing=1)
    captured = scratch.scratch(DEVICE)
    assert captured is not eager
    assert cuda["made"] == made
    assert scratch.scratch(DEVICE) is captured


def test_capture_without_any_warm_up_says_what_to_do(cuda: dict[str, int]) -> None:
    cuda["capturing"] = 1
    with pytest.raises(RuntimeError, match="run the operation once eagerly"):
        scratch.scratch(DEVICE)
