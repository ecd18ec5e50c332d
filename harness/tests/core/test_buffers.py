from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from harness.buffers import CANARIES, GUARD, POISONS, Guarded, GuardedAllocations, guarded, storage_view
from harness.custom_ops import is_opaque, python_kernel


def beyond(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """The byte ``offset`` bytes from the start of a tensor, as a one-element view of its storage: a stray pointer."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return whole[tensor.data_ptr() - tensor.untyped_storage().data_ptr() + offset].unsqueeze(0)


LAYOUTS = {
    "contiguous": lambda: torch.randn(5, 7),
    "odd bytes": lambda: torch.arange(13, dtype=torch.uint8),
    "transposed": lambda: torch.randn(5, 7).t(),
    "sliced": lambda: torch.randn(5, 9)[:, 1:6],
    "every second": lambda: torch.randn(5, 8)[:, ::2],
    "expanded": lambda: torch.randn(1, 7).expand(5, 7),
    "scalar": lambda: torch.tensor(3.0),
    "fp8": lambda: torch.randn(4, 6).to(torch.float8_e4m3fn),
    "bool": lambda: torch.tensor([True, False, True]),
    "bf16": lambda: torch.randn(3, 3).bfloat16(),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_a_guarded_copy_has_the_same_values_shape_strides_and_dtype(make: Callable[[], torch.Tensor]) -> None:
    original = make()
    copy = guarded(original, "input x", CANARIES[0])
    assert copy.tensor.shape == original.shape
    assert copy.tensor.stride() == original.stride()
    assert copy.tensor.dtype is original.dtype
    assert torch.equal(copy.tensor.float(), original.float())
    assert copy.damage() is None
    assert copy.tensor.data_ptr() % 64 == 0, "as aligned as a fresh tensor"


@pytest.mark.parametrize("canary", CANARIES)
@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_a_byte_written_on_either_side_is_seen_with_its_distance(make: Callable[[], torch.Tensor], canary: int) -> None:
    size = storage_view(make()).numel() * make().element_size()
    for offset, words in ((-1, "1 bytes before it, the nearest 0 bytes"), (size, "1 bytes after it, the nearest 0")):
        made = guarded(make(), "input x", canary)
        beyond(made.tensor, offset).fill_(0x11)
        assert words in (made.damage() or "")
    made = guarded(make(), "input x", canary)
    beyond(made.tensor, -GUARD).fill_(0x11)
    beyond(made.tensor, size + GUARD - 1).fill_(0x11)
    assert (made.damage() or "").count("1 bytes") == 2


def test_a_write_of_the_canary_byte_itself_is_caught_under_the_other_canary() -> None:
    def damaged(canary: int) -> bool:
        made = guarded(torch.zeros(4), "x", canary)
        beyond(made.tensor, 16).fill_(CANARIES[0])
        return made.damage() is not None

    assert [damaged(canary) for canary in CANARIES] == [False, True]


def test_fill_poisons_the_tensor_and_nothing_beside_it() -> None:
    made = guarded(torch.zeros(5, dtype=torch.int16), "out", CANARIES[0], fill=0x7B)
    assert made.tensor.tolist() == [0x7B7B] * 5
    assert made.damage() is None


@pytest.mark.parametrize("shape", [(0,), (0, 8), (4, 0)])
def test_an_empty_tensor_is_guarded_too(shape: tuple[int, ...]) -> None:
    made = guarded(torch.zeros(shape), "x", CANARIES[0])
    assert made.tensor.shape == shape
    assert made.damage() is None
    made.buffer[GUARD] = 0
    assert made.damage() is not None


ALLOCATORS: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(3, 5),
    "empty_like": lambda: torch.empty_like(torch.zeros(3, 5)),
    "new_empty": lambda: torch.zeros(1).new_empty(3, 5),
    "empty_strided": lambda: torch.empty_strided((3, 5), (1, 3)),
    "new_empty_strided": lambda: torch.zeros(1).new_empty_strided((3, 5), (5, 1)),
    "empty_permuted": lambda: torch.empty_permuted((3, 5), (1, 0)),
    "empty_like transposed": lambda: torch.empty_like(torch.zeros(5, 3).t()),
    "empty channels last": lambda: torch.empty(2, 3, 4, 5, memory_format=torch.channels_last),
}


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("make", ALLOCATORS.values(), ids=ALLOCATORS)
def test_every_way_to_allocate_without_initialising_is_poisoned_and_guarded(
    make: Callable[[], torch.Tensor], poison: int
) -> None:
    plain = make()
    with GuardedAllocations(poison=poison) as allocations:
        made = make()
    assert (made.shape, made.stride(), made.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert bool((made.contiguous().view(torch.uint8) == poison).all())
    assert len(allocations.made) == 1
    assert allocations.damage() == []
    beyond(made, made.numel() * 4).fill_(0)
    assert "allocation 0" in allocations.damage()[0]
    assert "after it" in allocations.damage()[0]


def test_what_is_initialised_is_left_alone() -> None:
    with GuardedAllocations(poison=0xFF) as allocations:
        total = torch.zeros(4).sum() + torch.ones(4).sum() + torch.full((4,), 2.0).sum()
    assert float(total) == 12
    assert allocations.made == []


def test_poison_is_nan_in_every_float_format_and_the_other_one_is_finite() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn):
        for poison, is_nan in zip(POISONS, (True, False), strict=True):
            values = torch.full((8,), poison, dtype=torch.uint8).view(dtype)
            assert bool(values.float().isnan().all()) is is_nan


def test_a_view_as_a_wider_dtype_works_on_poisoned_memory() -> None:
    with GuardedAllocations(poison=0x7B):
        packed = torch.empty(4, 8, dtype=torch.uint8)
        assert packed.view(torch.int64).shape == (4, 1)
        assert packed.view(torch.float32).view(-1)[0] == packed.view(torch.float32).view(-1)[7]
        assert torch.empty(24, dtype=torch.uint8)[8:].view(torch.int64).shape == (2,)


@pytest.fixture(scope="module")
def operators() -> dict[str, Callable[..., torch.Tensor]]:
    @torch.library.custom_op("harness_test::for_all", mutates_args=())
    def for_all(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    @torch.library.custom_op("harness_test::for_cpu", mutates_args=(), device_types="cpu")
    def for_cpu(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    @torch.library.custom_op("harness_test::outer", mutates_args=())
    def outer(x: torch.Tensor) -> torch.Tensor:
        return for_cpu(x) + 0

    return {"for_all": for_all, "for_cpu": for_cpu, "outer": outer}


@pytest.mark.parametrize("name", ["for_all", "for_cpu", "outer"])
def test_allocations_inside_custom_operators_in_python_are_seen(
    operators: dict[str, Callable[..., torch.Tensor]], name: str
) -> None:
    with GuardedAllocations(poison=0x7B) as allocations:
        result = operators[name](torch.zeros(3))
    assert len(allocations.made) == 1
    assert not allocations.opaque
    assert bool((result.view(torch.uint8) == 0x7B).all())


def test_an_operator_without_a_python_kernel_is_named_as_opaque() -> None:
    library = torch.library.Library("harness_test_opaque", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: torch.empty_like(x), "CPU")
    twice = torch.ops.harness_test_opaque.twice
    with GuardedAllocations(poison=0x7B) as allocations:
        twice(torch.zeros(3))
    assert allocations.opaque == {"harness_test_opaque.twice.default"}
    assert is_opaque(twice.default, "cpu")
    assert not is_opaque(torch.ops.aten.add.Tensor, "cpu")


def test_the_kernel_for_another_device_is_not_taken_for_this_one(
    operators: dict[str, Callable[..., torch.Tensor]],
) -> None:
    assert python_kernel(torch.ops.harness_test.for_cpu.default, "cpu") is not None
    assert python_kernel(torch.ops.harness_test.for_cpu.default, "cuda") is None
    assert python_kernel(torch.ops.harness_test.for_all.default, "cuda") is not None
    assert python_kernel(torch.ops.aten.add.Tensor, "cpu") is None


def test_damage_without_any_is_none() -> None:
    made = Guarded("x", torch.zeros(1), torch.full((2 * GUARD + 4,), 0xA5, dtype=torch.uint8), 0xA5, 4)
    assert made.damage() is None
