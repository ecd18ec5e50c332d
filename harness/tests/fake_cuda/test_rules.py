"""Every rule fires on its smallest case, and not on the safe twin beside it."""

from __future__ import annotations

import sys

import pytest
import torch

from harness.fake_cuda import Severity, fake_cuda, lint_capture
from harness.tests.fake_cuda.capture_cases import CASES
from harness.tests.fake_cuda.lint_case import lint_case

# rule, the case in which it must be found, the twin in which it must not
PAIRS = [
    ("host-to-device", "seed_bug", "full0"),
    ("host-to-device", "copy_h2d", "to_same_device"),
    ("host-to-device", "where_cpu_scalar_tensor", "where_two_scalars"),
    ("host-to-device", "idx_list", "idx_arange"),
    ("host-to-device", "idxput_scalar", "idxput_tensor"),
    ("device-to-host", "cpu", "to_dtype"),
    ("device-to-host", "cpu_nb", "to_dtype"),
    ("host-sync", "item", "device_scalar_factor"),
    ("host-sync", "fstring", "len_shape"),
    ("host-sync", "tolist", "views"),
    ("host-sync", "equal_other", "equal"),
    ("host-sync", "masked_fill_device_scalar", "masked_fill"),
    ("host-sync", "index_fill_device_scalar", "index_fill"),
    ("host-sync", "histc0", "histc_rng"),
    ("host-sync", "sync", "fork_join"),
    ("host-sync", "event_sync", "fork_join_events"),
    ("data-dependent-shape", "nonzero", "nonzero_static"),
    ("data-dependent-shape", "mask_set_tensor", "mask_set_scalar"),
    ("data-dependent-shape", "rep_int", "rep_int_os"),
    ("rng", "rand_gen", "registered_generator"),
    ("rng-seed", "seed_in", "randn"),
    ("rng-seed", "another_seed", "randn"),
    ("rng-seed", "read_generator_state", "randn"),
    ("rng-seed", "generator_made_inside", "rand_gen"),
    ("unjoined-stream", "fork_nojoin", "fork_join"),
    ("unjoined-stream", "fork_join_nested_too_early", "fork_join_nested"),
    ("capture-isolation", "wait_for_event_of_warmup", "fork_join_events"),
    ("not-captured", "stream_kept_from_warmup", "fork_join"),
    ("record-stream", "record_stream", "fork_join"),
    ("stale-pointer", "alternating_buffers", "hidden_static"),
    ("cache-in-capture", "realloc_hidden", "hidden_static"),
    ("cache-in-capture", "history_of_results", "updated_in_place"),
    ("baked-constant", "counter_const", "len_shape"),
    ("baked-constant", "python_random", "randn"),
    ("unstable-trace", "counter_branch", "lock_"),
    ("host-work", "subprocess_", "gc_collect"),
    ("host-work", "lazy_import", "lock_"),
    ("host-work", "load_library", "lock_"),
    ("host-work", "starts_a_thread", "lock_"),
    ("pinned-allocation", "pinned_allocation", "factories"),
    ("baked-pointer", "data_ptr", "item"),
    ("hidden-input", "lut_cached", "full0"),
    ("allocator", "empty_cache", "lock_"),
    ("empty-graph", "split_list", "views"),
]


@pytest.mark.parametrize(("rule", "fires", "twin"), PAIRS, ids=[f"{rule}:{fires}" for rule, fires, _ in PAIRS])
def test_rule_fires_on_its_case_and_not_on_the_twin(rule, fires, twin):
    case, safe = lint_case(CASES[fires]), lint_case(CASES[twin])
    assert rule in {finding.rule for finding in case.findings}, str(case)
    assert rule not in {finding.rule for finding in safe.findings}, str(safe)


def test_what_happens_only_in_warmup_is_no_finding_against_the_capture():
    report = lint_case(CASES["lut_cached"])
    early = report.of(Severity.WARMUP)
    assert [finding.rule for finding in early] == ["host-to-device"]
    assert early[0].call == 1


def test_without_warmup_the_same_function_breaks():
    table = {}

    def cached(x):
        if "lut" not in table:
            table["lut"] = torch.tensor([1.0, 2.0], device=x.device)
        return torch.bucketize(x, table["lut"])

    with fake_cuda():
        x = torch.randn(8, device="cuda")
        assert lint_capture(cached, (x,), warmup=0).verdict == "break"


def test_a_finding_names_the_line_of_the_function():
    with fake_cuda():
        report = lint_capture(lambda x: x.sum().item(), (torch.randn(4, device="cuda"),))
    (first, *_) = report.of(Severity.BREAK)
    assert first.where.startswith("test_rules.py:")
    assert first.call == 3
    assert len(report.findings) == 1, "the second captured call repeats it, the report does not"


def test_an_exception_is_an_error_not_a_pass():
    def wrong(x):
        raise ValueError("no such tile")

    with fake_cuda():
        report = lint_capture(wrong, (torch.randn(4, device="cuda"),))
    assert report.verdict == "error"
    assert "no such tile" in str(report)
    assert report.result is None


def test_a_compiler_that_reports_itself_is_seen_in_the_captured_call_only():
    calls = iter(range(10))

    def compiles(x):
        if next(calls) in slots:
            sys.audit("gpu.compile", "my kernel")
        return x * 2

    with fake_cuda():
        x = torch.randn(4, device="cuda")
        slots = {0}
        assert lint_capture(compiles, (x,)).verdict == "ok"
        calls, slots = iter(range(10)), {2}
        report = lint_capture(compiles, (x,))
    assert [finding.rule for finding in report.of(Severity.BREAK)] == ["jit-in-capture"]
    assert "my kernel" in str(report)


def test_a_swallowed_host_read_is_found():
    assert lint_case(CASES["try_except_item"]).verdict == "break"


def test_out_that_is_not_written_is_named():
    def ignores(x, out):
        return x * 2

    def writes(x, out):
        return torch.mul(x, 2, out=out)

    with fake_cuda():
        x, out = torch.randn(4, device="cuda"), torch.empty(4, device="cuda")
        assert "out-ignored" in {f.rule for f in lint_capture(ignores, (x, out), out=out).findings}
        assert lint_capture(writes, (x, out), out=out).verdict == "ok"


def test_declared_static_buffers_are_not_hidden_inputs():
    with fake_cuda():
        x, table = torch.randn(4, device="cuda"), torch.randn(4, device="cuda")
        hidden = lint_capture(lambda x: x + table, (x,))
        declared = lint_capture(lambda x: x + table, (x,), static=(table,))
    assert [finding.rule for finding in hidden.findings] == ["hidden-input"]
    assert declared.findings == ()


def test_result_trace_and_keyword_arguments():
    def halves(x, *, scale):
        return {"first": x[:4] * scale, "count": 4}

    with fake_cuda():
        report = lint_capture(halves, (torch.randn(8, 16, device="cuda"),), {"scale": 2.0})
    assert report.result["count"] == 4
    assert report.result["first"].shape == (4, 16)
    assert report.result["first"].device == "cuda"
    assert report.op_trace[-1] == "aten.mul.Tensor"
    assert report.device_ops == 1


def test_lint_needs_a_pretended_device_and_does_not_nest():
    with pytest.raises(RuntimeError, match="fake_cuda"):
        lint_capture(lambda: None)
    with fake_cuda():
        x = torch.randn(4, device="cuda")
        report = lint_capture(lambda x: lint_capture(lambda y: y, (x,)), (x,))
    assert "already running" in str(report)


def test_work_that_is_skipped_while_capturing_is_a_hazard():
    def skips(x, out):
        if not torch.cuda.is_current_stream_capturing():
            out.copy_(x * 2)
        return out

    with fake_cuda():
        x, out = torch.randn(4, device="cuda"), torch.empty(4, device="cuda")
        report = lint_capture(skips, (x, out))
        fresh = lint_capture(lambda x: torch.empty_like(x), (x,))
    assert "captured-otherwise" in {finding.rule for finding in report.of(Severity.HAZARD)}
    assert {finding.rule for finding in fresh.of(Severity.HAZARD)} == {"empty-graph"}
