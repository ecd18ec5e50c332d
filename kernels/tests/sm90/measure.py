"""Measure the Hopper kernels: graph replay, cold weights, floor from this card's own copy bandwidth and matrix rate.

    python -m kernels.tests.sm90.measure OUT.json [ceilings] [quantize] [dense] [moe] [host]

Every launch of a captured graph reads other weights than the ones before it, more than three times the L2 in all, so
each finds them cold. Times are GPU microseconds a launch: median of replays of one graph, between two events.
"""

# ruff: noqa: B023 - the closures run before the loop that binds their variables moves on
from __future__ import annotations

import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernels.jit import dsl_version
from kernels.sm90 import gemm, moe, quantize
from kernels.sm90.weights import SLAB_BYTES, ShuffledWeights

COLD_BYTES = 3 * 60 * 2**20
MATRIX_RATE = 790e12
"""bf16 8192^3 product of random data on this model of card (measured 788 to 798 TFLOP/s), flop/s."""


def graph_us(launches: list[Callable[[], Any]], replays: int = 5) -> float:
    """Microseconds a launch of one graph that holds all `launches`, each run eagerly once before."""
    for launch in launches[: min(2, len(launches))]:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(launches))
    return statistics.median(times)


def copy_rate() -> float:
    """Bytes read and written a second by a 2 GiB device-to-device copy."""
    a = torch.randint(0, 255, (2**31,), dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    times = []
    for _ in range(12):  # not in a graph: a copy node ran at 2.7 TB/s there, the same copy as a kernel at 4.28
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        b.copy_(a)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return 2 * a.numel() / statistics.median(times[2:])


def machine() -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    driver = pynvml.nvmlSystemGetDriverVersion()
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver if isinstance(driver, str) else driver.decode(),
        "torch": torch.__version__,
        "cute_dsl": dsl_version(),
        "date": datetime.date.today().isoformat(),
        "copy_bytes_per_s": copy_rate(),
        "matrix_flop_per_s_assumed": MATRIX_RATE,
    }


def random_weights(experts: int, rows: int, k: int, kind: str = "plain") -> ShuffledWeights:
    """Valid random bytes, straight in the shuffled layout: codes uniform, scales in [1, 4)."""
    shape = ShuffledWeights(torch.empty(0), experts, rows, k, kind)
    data = torch.randint(
        0, 2**31 - 1, (experts * shape.slabs * shape.k_blocks, SLAB_BYTES // 4), dtype=torch.int32, device="cuda"
    )
    scale = torch.randint(22 * 8, 24 * 8, (data.shape[0], 128), dtype=torch.int32, device="cuda")
    pair = (scale << 4) | (scale << 20)
    data[:, 1024:] = pair | (pair << 8) | ((pair >> 24) & 0xFF)
    return ShuffledWeights(data.view(torch.uint8).view(-1), experts, rows, k, kind)


def measure_quantize(rate: float) -> list[dict[str, Any]]:
    results = []
    for m, k in [(1, 7168), (8, 7168), (64, 7168), (512, 7168), (8192, 7168), (16384, 7168), (32768, 4096)]:
        count = max(2, min(64, COLD_BYTES // (m * k * 2) + 1))
        xs = [torch.randn(m, k, device="cuda").to(torch.bfloat16) for _ in range(count)]
        g = torch.full((), 0.002, device="cuda")
        outs = [
            (torch.empty(m, k // 2, dtype=torch.uint8, device="cuda"),
             torch.empty(m, k // 16, dtype=torch.float8_e4m3fn, device="cuda")) for _ in range(count)
        ]  # fmt: skip
        floor = m * k * 2.5625 / rate * 1e6
        row: dict[str, Any] = {"m": m, "k": k, "floor_us": floor}
        row["given_us"] = graph_us(
            [lambda x=x, o=o: quantize.quantize_activation_nvfp4(x, g, out=o) for x, o in zip(xs, outs, strict=True)]
        )
        row["swizzled_us"] = graph_us(
            [lambda x=x: quantize.quantize_activation_nvfp4(x, g, scale_layout="swizzled") for x in xs]
        )
        row["two_kernel_us"] = graph_us([lambda x=x: quantize.quantize_to_nvfp4(x) for x in xs])
        if k % 32 == 0:
            row["swiglu_us"] = graph_us([lambda x=x: quantize.swiglu_quantize_nvfp4(x, g) for x in xs])
        row["empty_us"] = graph_us([lambda: g.fill_(0.002)] * 64)
        row["fraction_of_copy"] = floor / row["given_us"]
        results.append(row)
    return results


DENSE = [(6144, 7168), (7168, 3072), (8192, 1536), (7168, 16384), (2048, 7168)]


def measure_dense(rate: float, shapes: list[tuple[int, int]], tokens: list[int]) -> list[dict[str, Any]]:
    results = []
    alpha = torch.ones(1, device="cuda")
    for n, k in shapes:
        count = COLD_BYTES // (n * k * 9 // 16) + 1
        ws = [random_weights(1, n, k) for _ in range(count)]
        dense_count = COLD_BYTES // (n * k * 2) + 1
        bf = [torch.randn(n, k, device="cuda").to(torch.bfloat16) for _ in range(dense_count)]
        for m in tokens:
            x = torch.randn(m, k, device="cuda").to(torch.bfloat16)
            bytes_ = n * k * 9 / 16 + m * (n + k) * 2
            floor = max(bytes_ / rate, 2 * m * n * k / MATRIX_RATE) * 1e6
            row: dict[str, Any] = {"n": n, "k": k, "m": m, "floor_us": floor}
            some = ws if m <= 1024 else ws[:4]
            for tile in gemm.TILES:
                if tile != gemm.PREFILL and m > 512:
                    continue
                out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
                row[f"{tile}_us"] = graph_us(
                    [lambda w=w, o=out, t=tile: gemm.linear(x, w, alpha, tile=t, out=o) for w in some], 3
                )
            row["cublas_bf16_us"] = graph_us([lambda w=w: x @ w.T for w in (bf if m <= 1024 else bf[:2])], 3)
            row["us"] = row[f"{gemm.choose(m, 1)}_us"]
            row["ratio"] = row["us"] / floor
            results.append(row)
        del ws, bf
    return results


LAYERS = {"v4-pro-ep8": (48, 7168, 3072), "v4-flash-ep8": (32, 4096, 2048)}


def routing(kind: str, tokens: int, experts: int, top_k: int, seed: int) -> torch.Tensor:
    """Distinct experts a token; "zipf": popularity 1 / rank over a fixed random ranking."""
    g = torch.Generator("cuda").manual_seed(seed)
    weight = torch.ones(experts, device="cuda")
    if kind == "zipf":
        ranks = torch.randperm(experts, generator=torch.Generator("cuda").manual_seed(1), device="cuda")
        weight = 1.0 / (ranks + 1)
    return torch.multinomial(weight.expand(tokens, -1), top_k, generator=g).to(torch.int32)


def measure_moe(rate: float, tokens: list[int], parts: bool) -> list[dict[str, Any]]:
    results = []
    top_k = 6
    for name, (experts, hidden, inter) in LAYERS.items():
        layer = moe.Experts(
            random_weights(experts, 2 * inter, hidden, "swiglu"), random_weights(experts, hidden, inter),
            torch.full((experts,), 1e-3, device="cuda"), torch.full((experts,), 1e-3, device="cuda"),
        )  # fmt: skip
        expert_bytes = 3 * hidden * inter * 9 / 16
        for m in tokens:
            for kind in ("uniform", "zipf"):
                count = 10 if m <= 64 else 3
                x = torch.randn(m, hidden, device="cuda").to(torch.bfloat16)
                w = torch.rand(m, top_k, device="cuda")
                ids = [routing(kind, m, experts, top_k, s) for s in range(count)]
                if m == 1:  # other experts each time, else they are still in L2
                    every = torch.randperm(experts, device="cuda", dtype=torch.int32)
                    ids = [every.roll(-6 * i)[:6].view(1, 6).contiguous() for i in range(count)]
                hit = statistics.mean(len(i.unique()) for i in ids)
                io = m * hidden * 4
                floor = max((hit * expert_bytes + io) / rate, 6 * m * top_k * hidden * inter / MATRIX_RATE) * 1e6
                us = graph_us([lambda i=i: layer.forward(x, w, i) for i in ids])
                row: dict[str, Any] = {
                    "layer": name, "m": m, "routing": kind, "hit": hit,
                    "floor_us": floor, "us": us, "ratio": us / floor,
                }  # fmt: skip
                if parts:
                    ready = [moe.route_and_gather(x, i, experts) for i in ids]
                    h = torch.randn(m * top_k, inter, device="cuda").to(torch.bfloat16)
                    o = torch.randn(m * top_k, hidden, device="cuda").to(torch.bfloat16)
                    if kind == "uniform":
                        row["route_us"] = graph_us([lambda i=i: moe.route_and_gather(x, i, experts) for i in ids])
                        row["combine_us"] = graph_us([lambda r=r: moe.combine(o, r[2], w) for r in ready])
                    for tile in gemm.TILES:
                        if (tile == gemm.DECODE and m > 512) or (tile == gemm.PREFILL and m < 64):
                            continue
                        row[f"l1_{tile}_us"] = graph_us(
                            [lambda r=r, t=tile: gemm.grouped_gemm(
                                r[0], layer.l1, r[1], layer.l1_alpha,
                                swiglu_limit=10.0, out=h, tile=t, offsets_settled=True)
                             for r in ready], 3)  # fmt: skip
                        row[f"l2_{tile}_us"] = graph_us(
                            [lambda r=r, t=tile: gemm.grouped_gemm(
                                h, layer.l2, r[1], layer.l2_alpha, out=o, tile=t, offsets_settled=True)
                             for r in ready], 3)  # fmt: skip
                    del ready, h, o
                results.append(row)
        if parts:
            results += grouped_mm(
                name, experts, hidden, inter, [m for m in tokens if m in (8, 64, 512, 2048, 4096, 8192)]
            )
        torch.cuda.empty_cache()
    return results


def grouped_mm(name: str, experts: int, hidden: int, inter: int, tokens: list[int]) -> list[dict[str, Any]]:
    """bf16 torch._grouped_mm of the same layer: L1, SiLU, L2, weighted sum; uniform routing."""
    w1 = torch.randn(experts, hidden, 2 * inter, device="cuda", dtype=torch.bfloat16)
    w2 = torch.randn(experts, inter, hidden, device="cuda", dtype=torch.bfloat16)
    results = []
    for m in tokens:
        ids = routing("uniform", m, experts, 6, 0)
        counts = torch.bincount(ids.view(-1), minlength=experts)
        offs = counts.cumsum(0).to(torch.int32)
        order = torch.argsort(ids.view(-1), stable=True)
        inverse = torch.argsort(order)
        x, w = torch.randn(m, hidden, device="cuda").to(torch.bfloat16), torch.rand(m, 6, 1, device="cuda")

        def run(x=x, w=w, order=order, inverse=inverse, offs=offs) -> torch.Tensor:
            gu = torch._grouped_mm(x[order // 6], w1, offs=offs)
            h = torch.nn.functional.silu(gu[:, :inter]) * gu[:, inter:]
            o = torch._grouped_mm(h, w2, offs=offs)
            return (o[inverse].view(-1, 6, hidden) * w).sum(1)

        results.append({"layer": name, "m": m, "grouped_mm_bf16_us": graph_us([run] * 3)})
    return results


def measure_host() -> dict[str, float]:
    """Microseconds of Python for one call, the GPU not waited for."""
    experts, hidden, inter = 8, 1024, 512
    layer = moe.Experts(
        random_weights(experts, 2 * inter, hidden, "swiglu"), random_weights(experts, hidden, inter),
        torch.ones(experts, device="cuda"), torch.ones(experts, device="cuda"),
    )  # fmt: skip
    x, ids = torch.randn(2, hidden, device="cuda").to(torch.bfloat16), routing("uniform", 2, experts, 6, 0)
    w, offsets = torch.rand(2, 6, device="cuda"), torch.tensor([0, 2] + [2] * 7, dtype=torch.int32, device="cuda")
    g = torch.full((), 0.01, device="cuda")
    result = {}
    for name, call in {
        "layer": lambda: layer.forward(x, w, ids),
        "grouped_gemm": lambda: gemm.grouped_gemm(x, layer.l1, offsets, layer.l1_alpha),
        "quantize": lambda: quantize.quantize_activation_nvfp4(x, g),
    }.items():
        times = []
        for _ in range(200):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e6)
        result[f"{name}_us"] = statistics.median(times)
    return result


def main() -> None:
    path, wanted = Path(sys.argv[1]), set(sys.argv[2:])
    torch.manual_seed(0)
    result: dict[str, Any] = {"machine": machine()}
    rate = result["machine"]["copy_bytes_per_s"]
    print(json.dumps(result["machine"]))

    def show(name: str, rows: Any) -> None:
        result[name] = rows
        for row in rows if isinstance(rows, list) else [rows]:
            print(name, " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()))
        path.write_text(json.dumps(result, indent=1))

    full = "full" in wanted
    if "quantize" in wanted:
        show("quantize", measure_quantize(rate))
    if "dense" in wanted:
        show("dense", measure_dense(rate, DENSE if full else DENSE[:2], [1, 8, 16, 32, 64, 128, 512, 2048, 4096]))
    if "moe" in wanted:
        tokens = (
            [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
            if full
            else [1, 8, 32, 64, 128, 256, 512, 2048]
        )
        show("moe", measure_moe(rate, tokens, parts=True))
    if "host" in wanted:
        show("host", measure_host())


if __name__ == "__main__":
    main()
