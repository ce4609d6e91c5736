"""What a sample shows: always inside the picture, as its record allows, and following from its random numbers alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.images.crops import (
    ATTEMPTS,
    Box,
    CenterCrop,
    RandomResizedCrop,
    draws_of,
)
from hasten.errors import Misconfigured

SIDES = st.integers(1, 700)
DRAWS = st.lists(
    st.floats(0, 1, exclude_max=True) | st.just(math.nextafter(1, 0)) | st.just(0.0),
    min_size=4 * ATTEMPTS + 1,
    max_size=4 * ATTEMPTS + 1,
)
RECORDS = st.builds(
    lambda size, scale, ratio: RandomResizedCrop(size, tuple(sorted(scale)), tuple(sorted(ratio))),
    st.integers(1, 300),
    st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
    st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)),
)


def boxes(view, height, width, count=2000, seed=3):
    numbers = np.random.default_rng(seed).integers(0, 2**63, count, dtype=np.uint64)
    return [view.box(height, width, draws) for draws in draws_of(numbers, view.draws)]


@given(view=RECORDS | st.builds(CenterCrop, st.integers(1, 300)), height=SIDES, width=SIDES, draws=DRAWS)
def test_every_box_lies_inside_the_picture_and_none_is_smaller_than_was_said(view, height, width, draws):
    box = view.box(height, width, draws)
    assert 0 <= box.top <= box.top + box.height <= height
    assert 0 <= box.left <= box.left + box.width <= width
    tall, wide = view.smallest(height, width)
    assert 1 <= tall <= box.height
    assert 1 <= wide <= box.width


def test_the_area_follows_torchvisions_law():
    """The same rule with torch's numbers, as torchvision's get_params writes it."""

    def theirs(height, width, scale, ratio):
        for _ in range(10):
            area = height * width * torch.empty(1).uniform_(*scale).item()
            shape = torch.exp(torch.empty(1).uniform_(*torch.log(torch.tensor(ratio)).tolist())).item()
            wide, tall = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < wide <= width and 0 < tall <= height:
                return tall, wide
        return height, width

    view = RandomResizedCrop(64)
    ours = sorted(box.height * box.width for box in boxes(view, 300, 500, 4000))
    sizes = [theirs(300, 500, view.scale, view.ratio) for _ in range(4000)]
    wanted = sorted(tall * wide for tall, wide in sizes)
    apart = np.abs(np.searchsorted(wanted, ours) - np.searchsorted(ours, ours)).max() / 4000
    assert apart < 0.04  # Kolmogorov and Smirnov: 0.036 would be passed once in a hundred


@pytest.mark.parametrize(
    ("view", "height", "width", "wanted"),
    [
        (CenterCrop(224), 256, 256, Box(16, 16, 224, 224)),
        (CenterCrop(224, resize=224), 100, 50, Box(25, 0, 50, 50)),
        (CenterCrop(100, resize=400), 400, 800, Box(150, 350, 100, 100)),
        (CenterCrop(8), 1, 1, Box(0, 0, 1, 1)),
    ],
)
def test_the_middle_is_what_resizing_and_cutting_would_leave(view, height, width, wanted):
    assert view.box(height, width) == wanted
    assert view.draws == 0


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: RandomResizedCrop(0), "the size of a view is 0"),
        (lambda: RandomResizedCrop(8, scale=(0, 1)), "RandomResizedCrop.scale is (0, 1)"),
        (lambda: RandomResizedCrop(8, scale=(0.9, 0.5)), "RandomResizedCrop.scale is (0.9, 0.5)"),
        (lambda: RandomResizedCrop(8, ratio=(2, 1)), "RandomResizedCrop.ratio is (2, 1)"),
        (lambda: RandomResizedCrop(8, flip=1.5), "RandomResizedCrop.flip is 1.5"),
        (lambda: CenterCrop(8, resize=7), "CenterCrop.resize is 7"),
    ],
)
def test_a_record_that_cannot_be_meant_is_refused(make, told):
    with pytest.raises(Misconfigured) as refusal:
        make()
    assert refusal.value.what == told
    assert refusal.value.fix.startswith("write ")
