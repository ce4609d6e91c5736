"""A batch that is resized on its device holds what each picture would be alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from data.pictures import pixels
from hasten.data.images.resample import crops_on_canvas, resize_together
from hasten.kernels.resampling.resized_crop import Layout, resized_crops

SIZES = [(224, 224), (300, 500), (16, 16), (7, 90), (1, 1), (225, 223)]


def exact(part, size, mirrored):
    """torch's own filter without rounding in between."""
    whole = torch.from_numpy(part).permute(2, 0, 1)[None].double()
    found = functional.interpolate(whole, size=(size, size), mode="bilinear", antialias=True)[0]
    return found.flip(-1) if mirrored else found


@settings(max_examples=30)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90), st.booleans()), min_size=1, max_size=5),
    size=st.integers(1, 64),
)
def test_a_batch_of_many_sizes_is_what_each_picture_is_alone(sizes, size):
    parts = [pixels(height, width, seed) for seed, (height, width, _) in enumerate(sizes)]
    canvas, sides = crops_on_canvas(parts)
    mirrored = torch.tensor([each for *_, each in sizes])
    found = resize_together(canvas, sides, mirrored, size)
    assert (found.dtype, found.shape) == (torch.float32, (len(parts), 3, size, size))
    for each, part, flip in zip(found, parts, mirrored.tolist(), strict=True):
        assert torch.allclose(each.double(), exact(part, size, flip), atol=1e-3, rtol=0)


def test_what_lies_beside_a_picture_on_the_canvas_does_not_count():
    parts = [pixels(40, 20), pixels(9, 70)]
    canvas, sides = crops_on_canvas(parts)
    assert canvas.shape == (2, 40, 70, 3)
    found = []
    for rubbish in (0, 255):
        for place, part in enumerate(parts):
            canvas[place, part.shape[0] :] = rubbish
            canvas[place, :, part.shape[1] :] = rubbish
        found.append(resize_together(canvas, sides, torch.tensor([False, True]), 16))
    assert torch.equal(*found)


def test_host_and_device_agree_within_rounding():
    picture, host = pixels(333, 200), torch.empty((1, 224, 224, 3), dtype=torch.uint8)
    resized_crops(host, Layout.BYTES, torch.ones(3), torch.zeros(3))(0, picture, (10, 20, 300, 150, True))
    canvas, sides = crops_on_canvas([picture[10:310, 20:170]])
    device = resize_together(canvas, sides, torch.tensor([True]), 224)[0].permute(1, 2, 0).numpy()
    assert np.abs(host[0].numpy() - device).max() <= 1.01


@pytest.mark.gpu
def test_a_device_gives_what_the_processor_gives():
    parts = [pixels(height, width) for height, width in SIZES]
    canvas, sides = crops_on_canvas(parts)
    mirrored = torch.arange(len(parts)) % 2 == 0
    here = resize_together(canvas, sides, mirrored, 96)
    there = resize_together(canvas.cuda(), sides.cuda(), mirrored.cuda(), 96)
    assert torch.allclose(there.cpu(), here, atol=0.5, rtol=0)
