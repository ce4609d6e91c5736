"""Batches on their device: each when it is asked for, or the next ones while the present one computes."""

import pytest
import torch

from hasten.data.images.image_batches import Shown
from hasten.data.loading.batch_loader import Microbatch
from hasten.data.loading.device_transfer import copied_ahead


def microbatches(count, error=None, asked=None, side=8):
    for number in range(count):
        if asked is not None:
            asked.append(number)
        batch = Shown(torch.full((2, 3, side, side), number, dtype=torch.uint8), torch.tensor([number, number]))
        yield Microbatch(batch, 2, number % 2 == 1)
    if error is not None:
        raise error


def on_device(batch):
    return Shown(*(part.cuda(non_blocking=True) for part in batch))


def numbers(found):
    return [(one.batch.labels.tolist(), one.samples, one.last) for one in found]


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 3, 12])
def test_copying_ahead_gives_the_same_batches_in_the_same_order(depth, count):
    found = list(copied_ahead(microbatches(count), on_device, torch.cuda.Stream(), depth))
    assert numbers(found) == numbers(microbatches(count))
    for number, one in enumerate(found):
        assert one.batch.pixels.is_cuda
        assert (one.batch.pixels == number).all()


@pytest.mark.gpu
@pytest.mark.trap(42)
@pytest.mark.parametrize("pinned", [False, True])
def test_no_batch_is_overwritten_while_the_device_still_reads_it(pinned):
    """The device is kept busy, so that copies run far ahead; every batch is used late, and let go at once."""
    side, matrix = 512, torch.randn(4096, 4096, device="cuda")

    def pinning(found):
        for one in found:
            yield one._replace(batch=Shown(*(part.pin_memory() for part in one.batch))) if pinned else one

    sums = []
    for one in copied_ahead(pinning(microbatches(40, side=side)), on_device, torch.cuda.Stream(), 3):
        for _ in range(3):
            matrix = (matrix @ matrix).clamp(-1, 1)
        pixels = one.batch.pixels.clone()  # on the computing stream, behind all of that
        sums.append((pixels.min(), pixels.max(), one.batch.labels.sum()))
        del one, pixels
    for number, found in enumerate(sums):
        assert [each.item() for each in found] == [number, number, 2 * number]
