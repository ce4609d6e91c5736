"""Two ways to make a part of a picture smaller or larger: both are Pillow's filter."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional

from data.pictures import pixels
from hasten.data.crops import Box
from hasten.data.resample import crops_on_canvas, resize_into, resize_together

SIZES = [(224, 224), (300, 500), (16, 16), (7, 90), (1, 1), (225, 223)]


def on_host(picture, box, size):
    out = torch.empty((1, size, size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)[0]
    resize_into(out, picture, box)
    return out.permute(1, 2, 0).numpy()


def as_pillow(picture, box, size):
    part = Image.fromarray(picture).crop((box.left, box.top, box.left + box.width, box.top + box.height))
    found = np.asarray(part.resize((size, size), Image.Resampling.BILINEAR))
    return found[:, ::-1] if box.mirrored else found


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("size", [32, 224])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_the_host_gives_pillows_pixels_but_for_one_level_in_one_of_fifty(height, width, size, mirrored):
    picture = pixels(height, width)
    box = Box(height // 5, width // 7, height - height // 5 - height // 6, width - width // 7 - width // 8, mirrored)
    apart = np.abs(on_host(picture, box, size).astype(int) - as_pillow(picture, box, size))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.02


@settings(max_examples=30)
@given(data=st.data(), height=st.integers(1, 90), width=st.integers(1, 90), size=st.integers(1, 70))
def test_any_box_on_the_host_is_pillows_within_one_level(data, height, width, size):
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    tall, wide = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    picture, box = pixels(height, width), Box(top, left, tall, wide, data.draw(st.booleans()))
    assert np.abs(on_host(picture, box, size).astype(int) - as_pillow(picture, box, size)).max() <= 1


def test_the_host_reads_memory_that_must_not_be_written_and_leaves_the_picture_as_it_was():
    picture, box = pixels(50, 60), Box(3, 4, 40, 50, True)
    wanted, before = on_host(picture, box, 16), picture.copy()
    picture.flags.writeable = False
    assert np.array_equal(on_host(picture, box, 16), wanted)
    assert np.array_equal(picture, before)


def test_the_host_writes_only_where_it_is_told():
    batch = torch.full((3, 8, 8, 3), 77, dtype=torch.uint8)
    resize_into(batch.permute(0, 3, 1, 2)[1], pixels(50, 60), Box(0, 0, 50, 60, True))
    assert set(batch[[0, 2]].flatten().tolist()) == {77}
    assert len(set(batch[1].flatten().tolist())) > 20


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
    picture, box = pixels(333, 200), Box(10, 20, 300, 150, True)
    canvas, sides = crops_on_canvas([picture[10:310, 20:170]])
    device = resize_together(canvas, sides, torch.tensor([True]), 224)[0].permute(1, 2, 0).numpy()
    assert np.abs(on_host(picture, box, 224) - device).max() <= 1.01


@pytest.mark.gpu
def test_a_device_gives_what_the_processor_gives():
    parts = [pixels(height, width) for height, width in SIZES]
    canvas, sides = crops_on_canvas(parts)
    mirrored = torch.arange(len(parts)) % 2 == 0
    here = resize_together(canvas, sides, mirrored, 96)
    there = resize_together(canvas.cuda(), sides.cuda(), mirrored.cuda(), 96)
    assert torch.allclose(there.cpu(), here, atol=0.5, rtol=0)
