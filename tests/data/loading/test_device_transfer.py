from collections import defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from hasten.data.loading.device_transfer import place

CPU, META = torch.device("cpu"), torch.device("meta")  # meta is a device without data, there on every machine
Pair = namedtuple("Pair", ["image", "label"])


@dataclass(frozen=True, slots=True)
class Example:
    image: torch.Tensor
    name: str = "cat"


def image() -> torch.Tensor:
    return torch.zeros(2, 3, 4, 4)


BATCHES: dict[str, Any] = {
    "tensor": image(),
    "tuple": (image(), torch.zeros(2)),
    "named tuple": Pair(image(), torch.zeros(2)),
    "dictionary": {"image": image(), "nested": [(image(), 3)]},
    "defaults": defaultdict(list, image=image()),
    "dataclass": Example(image()),
    "packed": pack_sequence([torch.zeros(3), torch.zeros(2)]),
}


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, Example):
        return [value.image]
    items = value.values() if hasattr(value, "values") else value if isinstance(value, tuple | list) else ()
    return [tensor for item in items for tensor in tensors(item)]


@pytest.mark.parametrize("form", BATCHES)
def test_every_tensor_reaches_the_device_and_the_form_stays(form):
    batch = BATCHES[form]
    placed = place(batch, META)
    assert type(placed) is type(batch)
    assert tensors(placed)
    assert {tensor.device.type for tensor in tensors(placed)} == {"meta"}
    assert {tensor.device.type for tensor in tensors(batch)} == {"cpu"}


@pytest.mark.parametrize("form", BATCHES)
def test_on_a_cpu_the_very_same_batch_comes_back(form):
    assert place(BATCHES[form], CPU) is BATCHES[form]


@pytest.mark.parametrize("device", [CPU, META])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_images_take_the_asked_layout(device, dtype):
    placed, _ = place((image().to(dtype), torch.zeros(2)), device, memory_format=torch.channels_last)
    assert placed.is_contiguous(memory_format=torch.channels_last)
    assert placed.device == device


@pytest.mark.trap(42)
@pytest.mark.gpu
def test_pinned_batches_copied_while_the_host_goes_on_arrive_whole():
    device = torch.device("cuda")
    arrived = []
    for number in range(200):
        host = torch.full((1 << 16,), float(number)).pin_memory()
        arrived.append(place(host, device, non_blocking=True))
        del host  # its memory may be given out again, though the copy may be in flight
    assert [tensor.unique().tolist() for tensor in arrived] == [[float(number)] for number in range(200)]
