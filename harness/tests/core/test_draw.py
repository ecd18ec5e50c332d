from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from harness.case import Case
from harness.inputs import Draw
from harness.inputs import draw as draw_module
from harness.inputs.checkpoint import list_tensors, load_tensor
from harness.worlds import make_world

CASE = Case((("m", 4),), "fp32")


def test_the_same_case_and_salt_give_the_same_bits_and_another_salt_gives_others() -> None:
    first, again, salted = Draw(CASE, "cpu"), Draw(CASE, "cpu"), Draw(CASE, "cpu", salt=1)
    a = first.tensor(4, 8)
    assert torch.equal(a, again.tensor(4, 8))
    assert not torch.equal(a, salted.tensor(4, 8))


def test_two_tensors_of_one_draw_differ() -> None:
    draw = Draw(CASE, "cpu")
    assert not torch.equal(draw.tensor(4, 8), draw.tensor(4, 8))


def test_a_named_tensor_does_not_change_when_others_are_drawn_before_it() -> None:
    alone, crowded = Draw(CASE, "cpu"), Draw(CASE, "cpu")
    crowded.tensor(3, name="first")
    crowded.integers(0, 9, 5)
    assert torch.equal(alone.tensor(4, 8, name="x"), crowded.tensor(4, 8, name="x"))


def test_another_seed_or_shape_is_another_stream() -> None:
    a = Draw(CASE, "cpu").tensor(4, 8)
    assert not torch.equal(a, Draw(Case((("m", 4),), "fp32", seed=1), "cpu").tensor(4, 8))
    assert not torch.equal(a, Draw(Case((("m", 5),), "fp32"), "cpu").tensor(4, 8))


def test_dtype_and_regime_come_from_the_case_unless_given() -> None:
    draw = Draw(Case((("m", 1),), "bf16", "zeros"), "cpu")
    assert draw.tensor(4).dtype is torch.bfloat16
    assert not draw.tensor(4).any()
    assert draw.tensor(4, dtype="fp16", regime="constant").tolist() == pytest.approx([0.7236] * 4, rel=1e-3)
    assert draw.tensor(4, dtype=torch.float64).dtype is torch.float64


@pytest.mark.parametrize("dtype", ["fp16", "e4m3", "e5m2", "bf16"])
def test_huge_values_are_clamped_to_the_finite_range_of_the_dtype(dtype: str) -> None:
    values = Draw(Case((("m", 1),), dtype, "huge"), "cpu").tensor(64, 64)
    assert bool(values.float().isfinite().all())
    assert float(values.float().abs().max()) == torch.finfo(values.dtype).max or dtype == "bf16"


def test_planted_infinities_and_nan_survive_the_cast() -> None:
    values = Draw(Case((("m", 1),), "fp16", "inf"), "cpu").tensor(64, 64)
    assert int(values.isinf().sum()) == 2
    assert int(Draw(Case((("m", 1),), "fp16", "nan"), "cpu").tensor(64, 64).isnan().sum()) == 2


def test_integers_stay_in_their_range_and_reach_both_ends() -> None:
    values = Draw(CASE, "cpu").integers(3, 7, 400, dtype="i32")
    assert values.dtype is torch.int32
    assert values.unique().tolist() == [3, 4, 5, 6]


def test_full_make_and_put_serve_a_suites_own_tensors() -> None:
    draw = Draw(CASE, "cpu")
    assert float(draw.full(0.5)) == 0.5
    assert draw.full(2, 3, dtype="i32").tolist() == [2, 2, 2]
    assert draw.make(lambda shape, generator: torch.ones(shape), 2, 2, dtype="bf16").dtype is torch.bfloat16
    value = torch.arange(6).view(2, 3)
    assert draw.put(value) is value


def test_a_huge_tensor_repeats_its_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_module, "REPEAT_ABOVE", 64)
    values = Draw(CASE, "cpu").tensor(10, 16)
    assert values.shape == (10, 16)
    assert torch.equal(values[:4], values[4:8])
    assert torch.equal(values[8:], values[:2])
    assert not torch.equal(values[0], values[1])
    assert Draw(CASE, "cpu").tensor(1, 100).shape == (1, 100)


def test_a_fake_draw_has_shapes_and_strides_and_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Draw(Case((("m", 1),), "bf16"), "meta", fake=True)
    monkeypatch.setattr(Draw, "generator", lambda *_: pytest.fail("a fake tensor has no values to draw"))
    big = draw.tensor(1 << 20, 1 << 20)
    assert (big.dtype, big.device.type) == (torch.bfloat16, "meta")
    assert draw.make(lambda *_: pytest.fail("never called"), 3, dtype="i32").shape == (3,)
    assert draw.integers(0, 2, 3).shape == (3,)
    put = draw.put(torch.zeros(3, 4).t())
    assert (tuple(put.shape), put.stride()) == ((4, 3), (1, 4))


def test_a_world_draws_on_its_own_device() -> None:
    assert make_world("cpu").draw(CASE).tensor(2).device.type == "cpu"
    with pytest.raises(ValueError, match="unknown world 'tpu'; expected one of cpu"):
        make_world("tpu")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(
        {
            "layer.weight": torch.arange(12, dtype=torch.float32).view(3, 4),
            "layer.half": torch.ones(2, 2, dtype=torch.bfloat16),
            "layer.bias": torch.zeros(3),
            "layer.packed": torch.zeros(4, 4, dtype=torch.uint8),
        },
        path,
    )
    return path


def test_a_checkpoint_offers_its_floating_point_matrices_only(checkpoint: Path) -> None:
    assert list_tensors(checkpoint) == {
        f"{checkpoint}#layer.weight": ((3, 4), "fp32"),
        f"{checkpoint}#layer.half": ((2, 2), "bf16"),
    }


def test_a_missing_or_foreign_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        list_tensors(tmp_path / "absent.safetensors")
    (tmp_path / "notes.safetensors").write_text("not a checkpoint")
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        list_tensors(tmp_path / "notes.safetensors")


def real(checkpoint: Path, salt: int = 0) -> Draw:
    return Draw(Case((("n", 3), ("k", 4)), "bf16", source=f"{checkpoint}#layer.weight"), "cpu", salt=salt)


def test_a_case_with_a_source_gets_the_real_tensor_first_and_drawn_ones_after(checkpoint: Path) -> None:
    draw = real(checkpoint)
    assert torch.equal(draw.tensor(3, 4), load_tensor(f"{checkpoint}#layer.weight").bfloat16())
    assert not torch.equal(draw.tensor(3, 4), load_tensor(f"{checkpoint}#layer.weight").bfloat16())


def test_a_name_or_an_index_tensor_before_it_does_not_lose_the_real_tensor(checkpoint: Path) -> None:
    draw = real(checkpoint)
    draw.integers(0, 4, 3)
    draw.tensor(5, regime="zeros")
    assert float(draw.tensor(3, 4, name="weight")[2, 3]) == 11.0


def test_another_salt_rolls_the_rows_of_the_real_tensor(checkpoint: Path) -> None:
    plain = real(checkpoint).tensor(3, 4)
    assert torch.equal(real(checkpoint, salt=1).tensor(3, 4), plain.roll(1, 0))


def test_a_case_that_asks_for_another_shape_than_the_real_one_is_an_error(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match=r"has shape \(3, 4\), the case asks for \(4, 3\)"):
        real(checkpoint).tensor(4, 3)
