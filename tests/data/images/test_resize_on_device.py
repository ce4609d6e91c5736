"""A batch that is resized on its device holds what each picture would be alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from hasten.data.images.image_batches import crops_on_canvas, resize_together
from support.data.image_cases import pixels

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


@pytest.mark.gpu
def test_a_device_gives_what_the_processor_gives():
    parts = [pixels(height, width) for height, width in SIZES]
    canvas, sides = crops_on_canvas(parts)
    mirrored = torch.arange(len(parts)) % 2 == 0
    here = resize_together(canvas, sides, mirrored, 96)
    there = resize_together(canvas.cuda(), sides.cuda(), mirrored.cuda(), 96)
    assert torch.allclose(there.cpu(), here, atol=0.5, rtol=0)
