"""Arguments that do not fit: a clear error, never a third outcome. And every torch-side registration."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.sparse import CONTEXT_PARALLEL, build_c128a_topk_metadata, compute_c4a_global_topk, ops

C128A_NAMES = list(inspect.signature(build_c128a_topk_metadata).parameters)
C4A_NAMES = list(inspect.signature(compute_c4a_global_topk).parameters)


def c128a_arguments(device: str = "cpu", **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "positions": torch.tensor([255, 511, 127], device=device),
        "compress_ratio": 128,
        "num_decode_tokens": 1,
        "token_to_req_indices": torch.zeros(3, dtype=torch.int32, device=device),
        "block_table": torch.tensor([[3, 4, 5]], dtype=torch.int32, device=device),
        "block_size": 2,
        "slot_mapping": torch.arange(3, device=device),
        "global_decode_buffer": torch.zeros(4, 8, dtype=torch.int32, device=device),
        "decode_lens_buffer": torch.zeros(4, dtype=torch.int32, device=device),
        "prefill_buffer": torch.zeros(4, 8, dtype=torch.int32, device=device),
        "max_compressed_tokens": None,
    }
    return arguments | changes


def c4a_arguments(device: str = "cpu", **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "topk_indices": torch.tensor([[0, 3, -1], [2, 5, 1]], dtype=torch.int32, device=device),
        "token_to_req_indices": torch.zeros(2, dtype=torch.int32, device=device),
        "block_table": torch.tensor([[3, 4]], dtype=torch.int32, device=device),
        "block_size": 4,
        "is_valid_token": torch.ones(2, dtype=torch.bool, device=device),
    }
    return arguments | changes


def int32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


C128A_WRONG = {
    "positions int32": ({"positions": int32(3)}, TypeError, "positions: expected torch.int64"),
    "requests int64": ({"token_to_req_indices": torch.zeros(3).long()}, TypeError, "torch.int32"),
    "slots int32": ({"slot_mapping": int32(3)}, TypeError, "slot_mapping"),
    "lens int64": ({"decode_lens_buffer": torch.zeros(4).long()}, TypeError, "decode_lens_buffer"),
    "decode int64": ({"global_decode_buffer": torch.zeros(4, 8).long()}, TypeError, "global_decode_buffer"),
    "positions strided": ({"positions": torch.zeros(6).long()[::2]}, ValueError, r"\.contiguous"),
    "table transposed": ({"block_table": int32(3, 2).t()}, ValueError, "stride 1 along columns"),
    "decode transposed": ({"global_decode_buffer": int32(8, 4).t()}, ValueError, "stride 1 along columns"),
    "prefill expanded": ({"prefill_buffer": int32(1, 8).expand(4, 8)}, ValueError, "do not overlap"),
    "positions 2-d": ({"positions": torch.zeros(3, 1).long()}, ValueError, "1 dimension"),
    "requests short": ({"token_to_req_indices": int32(2)}, ValueError, "at least 3"),
    "slots short": ({"slot_mapping": torch.zeros(2).long()}, ValueError, "at least 3"),
    "decode too few rows": ({"num_decode_tokens": 3, "global_decode_buffer": int32(2, 8)}, ValueError, "rows"),
    "prefill too few rows": ({"prefill_buffer": int32(1, 8)}, ValueError, "prefill_buffer"),
    "lens too short": ({"num_decode_tokens": 3, "decode_lens_buffer": int32(2)}, ValueError, "decode_lens"),
    "more decode than tokens": ({"num_decode_tokens": 4}, ValueError, "0..3"),
    "negative decode": ({"num_decode_tokens": -1}, ValueError, "0..3"),
    "block size 0": ({"block_size": 0}, ValueError, "block_size"),
    "ratio 0": ({"compress_ratio": 0}, ValueError, "compress_ratio"),
    "width past the rows": ({"max_compressed_tokens": 8192}, ValueError, "at most 8"),
    "widths differ": ({"prefill_buffer": int32(4, 16)}, ValueError, "buffers of one width"),
    "rank outside": ({"dcp_world_size": 2, "dcp_rank": 2}, ValueError, "0..1"),
    "actual negative": ({"actual_num_query_tokens": -1}, ValueError, "actual_num_query_tokens"),
    "implementation unknown": ({"implementation": "triton"}, ValueError, "implementation"),
    "cuda on a CPU": ({"implementation": "cuda"}, ValueError, "needs CUDA tensors"),
    "other device": ({"block_table": torch.zeros(1, 3, dtype=torch.int32, device="meta")}, ValueError, "meta"),
}


@pytest.mark.parametrize("case", C128A_WRONG)
def test_c128a_refuses(case: str) -> None:
    changes, error, message = C128A_WRONG[case]
    arguments = c128a_arguments(**changes)
    before = [arguments[k].clone() for k in ("global_decode_buffer", "decode_lens_buffer", "prefill_buffer")]
    with pytest.raises(error, match=message):
        build_c128a_topk_metadata(**arguments)
    after = [arguments[k] for k in ("global_decode_buffer", "decode_lens_buffer", "prefill_buffer")]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


OVERLAPPING = int32(2, 8)
C4A_WRONG = {
    "indices int64": ({"topk_indices": torch.zeros(2, 3).long()}, TypeError, "torch.int32"),
    "valid float": ({"is_valid_token": torch.ones(2)}, TypeError, "torch.bool or torch.uint8"),
    "valid int16": ({"is_valid_token": torch.ones(2).short()}, TypeError, "is_valid_token"),
    "valid short": ({"is_valid_token": torch.ones(1).bool()}, ValueError, "row count mismatch"),
    "valid strided": ({"is_valid_token": torch.ones(4).bool()[::2]}, ValueError, "stride 1"),
    "requests long": ({"token_to_req_indices": int32(3)}, ValueError, "row count mismatch"),
    "indices transposed": ({"topk_indices": int32(3, 2).t()}, ValueError, "stride 1 along columns"),
    "out of other shape": ({"out": int32(2, 4)}, ValueError, "row count mismatch"),
    "out int64": ({"out": torch.zeros(2, 3).long()}, TypeError, "out"),
    "lens of other shape": ({"lens": int32(3)}, ValueError, "row count mismatch"),
    "out shifted by one": (
        {"topk_indices": OVERLAPPING[:, :3], "out": OVERLAPPING[:, 1:4]}, ValueError, "overlaps the input",
    ),
    "ignore_slots": ({"options": CONTEXT_PARALLEL}, ValueError, "C128A"),
    "block size 0": ({"block_size": 0}, ValueError, "block_size"),
}  # fmt: skip


@pytest.mark.parametrize("case", C4A_WRONG)
def test_c4a_refuses(case: str) -> None:
    changes, error, message = C4A_WRONG[case]
    with pytest.raises(error, match=message):
        compute_c4a_global_topk(**c4a_arguments(**changes))


def test_a_read_only_row_may_be_shared_by_all_tokens() -> None:
    row = torch.tensor([[0, 1, -1]], dtype=torch.int32)
    out, lens = compute_c4a_global_topk(**c4a_arguments(topk_indices=row.expand(2, 3)))
    assert out.tolist() == [[12, 13, -1]] * 2
    assert lens.tolist() == [2, 2]


def test_inputs_are_left_alone() -> None:
    for function, arguments in (
        (build_c128a_topk_metadata, c128a_arguments()),
        (compute_c4a_global_topk, c4a_arguments()),
    ):
        inputs = {k: v for k, v in arguments.items() if isinstance(v, torch.Tensor) and "buffer" not in k}
        before = {k: v.clone() for k, v in inputs.items()}
        function(**arguments)
        assert all(torch.equal(inputs[k], before[k]) for k in inputs)


def operator_arguments() -> list[tuple[Any, tuple[Any, ...]]]:
    c128a = tuple(c128a_arguments().values())[:-1]
    c4a = tuple(c4a_arguments().values())
    empty = tuple(c128a_arguments(num_decode_tokens=0).values())[:-1]
    return [
        (ops.c128a_topk_metadata_, (*c128a, 8, 3, 1, 0, 1, 0, "torch")),
        (ops.c128a_topk_metadata_, (*empty, 5, 2, 2, 1, 1, 7, "torch")),
        (ops.c4a_global_topk_out, (*c4a, int32(2, 3), int32(2), 3, "torch")),
        (ops.c4a_global_topk_, (*c4a, int32(2), 0, "torch")),
    ]


@pytest.mark.parametrize("index", range(4))
def test_operators_pass_opcheck(index: int) -> None:
    operator, arguments = operator_arguments()[index]
    torch.library.opcheck(operator, arguments)


def test_compiled_equals_eager_and_mutations_are_seen() -> None:
    def step(arguments: dict[str, Any], c4a: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        decode, lens, prefill = build_c128a_topk_metadata(**arguments)
        out, count = compute_c4a_global_topk(**c4a, out=c4a["topk_indices"])
        return decode + 1, lens + 1, prefill + 1, out + 1, count + 1, c4a["topk_indices"] * 2

    eager = step(c128a_arguments(), c4a_arguments())
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(c128a_arguments(), c4a_arguments())
    assert all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))


def test_fake_tensors_never_reach_a_launch() -> None:
    with FakeTensorMode():
        decode, lens, prefill = build_c128a_topk_metadata(**c128a_arguments("cuda", max_compressed_tokens=8))
        out, count = compute_c4a_global_topk(**c4a_arguments("cuda"))
    assert (decode.shape, lens.shape, prefill.shape) == ((1, 8), (1,), (2, 8))
    assert (out.shape, count.shape, out.device.type) == ((2, 3), (2,), "cuda")


def test_one_graph_serves_every_number_of_tokens() -> None:
    graphs = CompileCounterWithBackend("aot_eager")

    def step(topk: torch.Tensor, requests: torch.Tensor, table: torch.Tensor, positions: torch.Tensor) -> Any:
        rows = requests.shape[0]
        buffers = [torch.zeros(rows, 8, dtype=torch.int32) for _ in range(2)]
        lens = torch.zeros(rows, dtype=torch.int32)
        first = build_c128a_topk_metadata(
            positions, 128, rows // 2, requests, table, 2, positions, buffers[0], lens, buffers[1]
        )
        return first, compute_c4a_global_topk(topk, requests, table, 64, requests == 0)

    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, backend=graphs, dynamic=True)
    counts = set()
    for rows in (10, 12, 14, 50):
        compiled(int32(rows, 9), int32(rows), int32(3, 4), torch.zeros(rows, dtype=torch.int64))
        counts.add(graphs.frame_count)
    assert len(counts) == 1
