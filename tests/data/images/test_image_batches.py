"""A batch in each of its forms holds the same pictures."""

import torch

from hasten.data.images.batch_memory import BatchMemory
from hasten.data.images.crops import Box
from hasten.data.images.image_batches import (
    Colours,
    Cropped,
    FillBytes,
    FillCanvas,
    FillPixels,
    Shown,
    resize_together,
)
from support.data.image_cases import pixels

MEAN, DEVIATION = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
COLOURS = Colours.of(MEAN, DEVIATION)
SIZE = 24
PARTS = [
    (pixels(50, 40, 1), Box(3, 5, 40, 30), 7),
    (pixels(20, 90, 2), Box(0, 0, 20, 90, True), 0),
    (pixels(24, 24, 3), Box(0, 0, 24, 24), 3),
]


def filled(form, order=(0, 1, 2), memory=None):
    filling = form(len(PARTS), SIZE, COLOURS, memory or BatchMemory())
    for place in order:
        filling.put(place, *PARTS[place])
    return filling.batch()


def test_pixels_are_the_bytes_normalised():
    shown = filled(FillBytes)
    assert type(shown) is Shown
    assert (shown.pixels.dtype, shown.pixels.shape) == (torch.uint8, (3, 3, SIZE, SIZE))
    assert shown.pixels.is_contiguous(memory_format=torch.channels_last)
    found, labels = filled(FillPixels)
    assert found.is_contiguous()
    assert torch.equal(found, COLOURS.normalised(shown.pixels.float()))
    assert (labels.dtype, labels.tolist()) == (torch.int64, [7, 0, 3]) == (shown.labels.dtype, shown.labels.tolist())


def test_what_a_device_makes_of_crops_is_what_the_host_makes_within_rounding():
    crops = filled(FillCanvas)
    assert type(crops) is Cropped
    assert (crops.canvas.shape, crops.canvas.dtype) == ((3, 40, 90, 3), torch.uint8)
    assert crops.sides.tolist() == [[40, 30], [20, 90], [24, 24]]
    assert crops.mirrored.tolist() == [False, True, False]
    assert crops.labels.tolist() == [7, 0, 3]
    found = resize_together(crops.canvas, crops.sides, crops.mirrored, SIZE)
    assert (found - filled(FillBytes).pixels.float()).abs().max() <= 1.01
