"""docs/shapes.md, written from the shapes. Nothing in the page is typed here but its words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from suites.models.activations import activation_shapes
from suites.models.config import C4A, C128A, SWA_ONLY, ModelConfig
from suites.models.deepseek import MODELS
from suites.models.experts import EP, expected_experts_hit, expert_gemms, experts_per_rank
from suites.models.ladder import ODD_SHAPES, ODD_TOKENS, ODD_WEIGHTS, TOKENS
from suites.models.linears import TP, LinearShape, linears
from suites.models.quoted import QUOTED_FIGURES
from suites.models.sparse import sparse_layout
from suites.models.weights import unique_weight_shapes

_HIT_TOKENS = (1, 8, 32, 128, 512)
_KINDS = {SWA_ONLY: "sliding window only", C4A: "C4A", C128A: "C128A"}
_NONE = "-"

_INTRO = """\
# Shapes

Every shape that the suites run, and where it comes from. The only figures typed by hand are those of three
`config.json` files (`suites/models/deepseek.py`); all below is computed from them. This page is written by
`python -m suites.models --markdown`, and a test fails when page and code disagree.

A product is y[M, N] = x[M, K] w[N, K]^T, on one rank of TP. `python -m suites.models` lists every shape with its id;
an id reads `model.tp.name`, as in `v4-pro.tp4.wq_b`.

The tests hold these shapes against the published tables, and against the sizes of published files: the one-layer
files of V4-Flash-0731 (each matched to within its safetensors header) and all of V4-Pro on disk (864.69 GB). A
missing linear, a wrong size or a wrong storage format would show there. No such check exists for V4.1-Flash: its
formats are taken to be those of V4, and its compressors are left out because their shapes are not published."""


def markdown() -> str:
    """The whole page."""
    parts = [
        _INTRO,
        "## Models",
        _models(),
        "## Linears\n\nN and K of one rank at TP " + _slashes(TP) + ". *Stored* is the format of DeepSeek's "
        "checkpoint: those in FP8 are the ones that NVFP4 can replace. *Uses* counts the main layers' products.",
    ]
    for model in MODELS.values():
        parts += [f"### {model.title}", _linears(model)]
    parts += [
        "## Experts\n\nL1 is gate and up stacked along N, L2 is down. TP slices each expert (N of L1, K of L2); EP "
        "leaves experts whole and shares them out. Sizes are of one whole expert: codes K/2 and scales K/16 bytes a "
        "row; swizzled scales are padded to 128 rows and 4 columns.",
        _experts(),
        "Sliced by TP, K of L2 is small and uneven:",
        _sliced(),
        "Experts on one rank, and how many of all experts M tokens are expected to hit, E (1 - (1 - k/E)^M), under "
        "uniform routing. The second is what a decode step must read.",
        _hits(),
        "## Activations\n\nWhat a quantiser sees: the inputs of the products above that NVFP4 can replace. Rows are "
        "per token.",
        _activations(),
        "## Sparse attention\n\nBuffers of index metadata and pages of compressed KV, at the models' longest "
        "context. The pages of V4.1-Flash follow the formula of V4 and were not checked against a source.",
        _sparse(),
        "## Tokens\n\n" + ", ".join(map(str, TOKENS)) + ".",
        "## Odd shapes\n\nSizes that break kernels which powers of two never break: "
        f"{len(ODD_WEIGHTS)} weights x {len(ODD_TOKENS)} token counts = {len(ODD_SHAPES)} shapes.",
        _table(("weight", "found in", "why"), ((o.weight.id, o.real or "no model", o.why) for o in ODD_WEIGHTS)),
        _table(("M", "why"), ODD_TOKENS.items()),
        "## Quoted figures\n\nShapes quoted in public work on these kernels, rebuilt from the configs.",
        _table(("shape", "what it is"), ((f"({', '.join(map(str, q.shape))})", q.meaning) for q in QUOTED_FIGURES)),
        f"## Distinct weights\n\n{len(unique_weight_shapes())} distinct (N, K) behind all of the above.",
        _table(
            ("weight", "NVFP4 bytes", "users", "first user"),
            ((w.id, w.nvfp4_bytes, len(ids), ids[0]) for w, ids in unique_weight_shapes().items()),
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _models() -> str:
    def row(label: str, values: Iterable[object]) -> tuple[object, ...]:
        return (label, *values)

    models = tuple(MODELS.values())
    return _table(
        ("", *(m.title for m in models)),
        (
            row("hidden", (m.hidden for m in models)),
            row("layers (+ draft)", (f"{m.layers} (+{m.draft.layers})" for m in models)),
            row("layers by compress ratio", (_kinds(m) for m in models)),
            row("heads x head size", (f"{m.attention.heads} x {m.attention.head_dim}" for m in models)),
            row("q rank / o rank / o groups", (_ranks(m) for m in models)),
            row("indexer heads x size, top-k", (_indexer(m) for m in models)),
            row("experts / top-k / shared", (_moe(m) for m in models)),
            row("expert columns", (m.experts.intermediate for m in models)),
            row("routed scaling / SwiGLU limit", (_scaling(m) for m in models)),
            row("hash-routed layers", (m.experts.hash_layers for m in models)),
            row("vocabulary", (m.vocab for m in models)),
            row("RMS epsilon", (m.rms_eps for m in models)),
            row("dense weights", (f"{m.native.dense}, {_x(m.native.dense_block)}" for m in models)),
            row("expert weights", (f"{m.native.experts} per {m.native.expert_block}" for m in models)),
            row("source", (m.source for m in models)),
        ),
    )


def _kinds(model: ModelConfig) -> str:
    return ", ".join(f"{count} {_KINDS.get(r, f'ratio {r}')}" for r, count in model.layer_kinds.items())


def _ranks(model: ModelConfig) -> str:
    return f"{model.attention.q_lora_rank} / {model.attention.o_lora_rank} / {model.attention.o_groups}"


def _indexer(model: ModelConfig) -> str:
    return f"{model.indexer.heads} x {model.indexer.head_dim}, {model.indexer.topk}"


def _moe(model: ModelConfig) -> str:
    return f"{model.experts.routed} / {model.experts.top_k} / {model.experts.shared}"


def _scaling(model: ModelConfig) -> str:
    return f"{model.experts.routed_scaling_factor} / {model.experts.swiglu_limit}"


def _linears(model: ModelConfig) -> str:
    ranks = [tuple(linears(model, tp)) for tp in TP]
    return _table(
        ("linear", "N", "K", "matrices", "split", "stored", "uses"),
        (_linear(same) for same in zip(*ranks, strict=True)),
    )


def _linear(same: Sequence[LinearShape]) -> tuple[object, ...]:
    lin = same[0]
    return (
        lin.name,
        _slashes(s.n for s in same),
        _slashes(s.k for s in same),
        _slashes(s.groups for s in same),
        lin.sharding,
        lin.stored,
        _NONE if lin.layers is None else lin.layers,
    )


def _experts() -> str:
    return _table(
        ("model", "GEMM", "N", "K", "packed K", "scale columns", "codes B", "scales B", "swizzled scales B"),
        (
            (
                model.title,
                gemm.name.upper(),
                gemm.n,
                gemm.k,
                gemm.weight.packed_k,
                gemm.weight.sf_k,
                gemm.weight.packed_bytes,
                gemm.weight.sf_bytes,
                gemm.weight.sf_swizzled_bytes,
            )
            for model in MODELS.values()
            for gemm in expert_gemms(model, tp=1, ep=1)
        ),
    )


def _sliced() -> str:
    def sizes(model: ModelConfig) -> tuple[object, ...]:
        pairs = [tuple(expert_gemms(model, tp, ep=1)) for tp in TP]
        return (
            model.title,
            _slashes(l1.n for l1, _ in pairs),
            _slashes(l2.k for _, l2 in pairs),
            _slashes(l2.weight.sf_k for _, l2 in pairs),
        )

    header = ("model", f"L1 N at TP {_slashes(TP)}", "L2 K", "L2 scale columns")
    return _table(header, map(sizes, MODELS.values()))


def _hits() -> str:
    header = ("model", f"experts at EP {_slashes(EP)}", *(f"hit, M={m}" for m in _HIT_TOKENS))
    return _table(
        header,
        (
            (
                model.title,
                _slashes(experts_per_rank(model, ep) for ep in EP),
                *(f"{expected_experts_hit(model, m):.1f}" for m in _HIT_TOKENS),
            )
            for model in MODELS.values()
        ),
    )


def _activations() -> str:
    def row(model: ModelConfig, index: int) -> tuple[object, ...]:
        same = [tuple(activation_shapes(model, tp, (1,)))[index] for tp in TP]
        return (
            model.title,
            same[0].name,
            _slashes(s.m for s in same),
            _slashes(s.k for s in same),
            ", ".join(same[0].feeds),
        )

    return _table(
        ("model", "activation", f"rows a token at TP {_slashes(TP)}", "K", "feeds"),
        (
            row(model, index)
            for model in MODELS.values()
            for index in range(len(tuple(activation_shapes(model, 1, (1,)))))
        ),
    )


def _sparse() -> str:
    layouts = [sparse_layout(model) for model in MODELS]
    header = ("model", "top-k", "top-k + window", "C128A width W", "entry B", "entries (B) of a page, by ratio")
    return _table(
        header,
        (
            (
                MODELS[s.model].title,
                s.index_topk,
                s.combined_width,
                _NONE if s.c128a_width is None else s.c128a_width,
                s.entry_bytes,
                ", ".join(f"{r}: {n} ({s.page_bytes(n)})" for r, n in s.slots_per_page.items()),
            )
            for s in layouts
        ),
    )


def _slashes(values: Iterable[int]) -> str:
    """``8/4/2/1``, or one value when all are equal."""
    found = list(values)
    return str(found[0]) if len(set(found)) == 1 else "/".join(map(str, found))


def _x(pair: tuple[int, int]) -> str:
    return f"{pair[0]} x {pair[1]}"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
