"""``fake_cuda``: pretend there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from harness.fake_cuda.device import DeviceProperties, FakeDevice, activate
from harness.fake_cuda.fake_methods import PretendMethods, answer_for_the_class
from harness.fake_cuda.fake_mode import pretend_mode
from harness.fake_cuda.guard import cuda_guard
from harness.fake_cuda.launchers import refuse_launchers
from harness.fake_cuda.patching import Patches
from harness.fake_cuda.stand_ins import stand_in
from harness.fake_cuda.streams import Streams
from harness.fake_cuda.triton_launches import record_triton


@contextmanager
def fake_cuda(
    capability: tuple[int, int] = (9, 0),
    name: str = "NVIDIA H200",
    sm_count: int = 132,
    l2_bytes: int = 60 << 20,
    total_memory: int = 141 << 30,
) -> Iterator[FakeDevice]:
    """Inside the block every tensor is fake: it has shape, strides, dtype and device, and no memory.

    ``device="cuda"`` works on any torch build, ``torch.cuda`` answers for the described device, random functions and
    ``torch.Generator(device="cuda")`` work, Triton kernels are recorded and not run. Everything that is replaced is
    put back at the end. Blocks cannot be nested.

    Tensors that code under test keeps in caches of its own stay fake after the block, and work in the next one: give
    the pretended and the real device a process each.
    """
    properties = DeviceProperties(
        name=name,
        major=capability[0],
        minor=capability[1],
        total_memory=total_memory,
        multi_processor_count=sm_count,
        L2_cache_size=l2_bytes,
    )
    with ExitStack() as stack:
        kind = stack.enter_context(cuda_guard())
        device = FakeDevice(properties, kind, mode=pretend_mode())
        stack.callback(activate(device))
        device.streams = Streams()
        patches = stack.enter_context(Patches())
        stand_in(patches, device)
        answer_for_the_class(patches)
        record_triton(patches)
        refuse_launchers(patches)
        stack.enter_context(device.mode)
        stack.enter_context(PretendMethods())
        yield device
