"""Samples as bytes, and the same samples again."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hasten.data.cache.sample_format import Unpacker, packed
from hasten.errors import DataFailed
from support.data.cached_samples import MODES, picture, same

Pair = namedtuple("Pair", "left right")


def again(sample):
    taken = packed(sample, "it")
    return Unpacker(taken.form).sample(list(taken.numbers), np.frombuffer(taken.values, np.uint8))


def viewed(sample):
    taken = packed(sample, "it")
    return Unpacker(taken.form).view(list(taken.numbers), np.frombuffer(taken.values, np.uint8))


TORCH_DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.bool, torch.complex64),
]
NUMPY_DTYPES = ["<f4", "<f8", "<f2", "|u1", "|i1", "<i2", "<u4", "<i8", "|b1", "<c8", ">f4", ">i2"]
SAMPLES = {
    "tensors": {str(dtype): torch.arange(12).to(dtype).reshape(3, 4).t() for dtype in TORCH_DTYPES},
    "arrays": {name: np.arange(24).astype(name).reshape(2, 3, 4).T for name in NUMPY_DTYPES},
    "no dimension, and no number": (torch.tensor(7.5), np.array(7), torch.zeros(0, 3), np.zeros((2, 0))),
    "numbers of NumPy": [np.float32(1.5), np.int8(-3), np.uint16(9), np.bool(True)],
    "numbers": (-5, 2**62, math.nan, -0.0, complex(1, -0.0), True, False),
    "text and bytes": ["ä\udc80\0", "", b"\0\1" * 70, b"", None],
    "within each other": [(), [], {}, {"a": {-1: (2, [torch.ones(3)])}, 7: "x"}],
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_a_sample_comes_back_bit_for_bit(sample):
    assert same(again(sample), sample)


@pytest.mark.parametrize("mode", MODES)
def test_a_picture_of_every_mode_comes_back(mode):
    assert same(again(picture(mode, 14)), picture(mode, 14))


@pytest.mark.trap(41)
def test_a_view_shows_the_same_and_cannot_be_written():
    tensor = torch.arange(6.0).reshape(2, 3).t()
    found = viewed({"tensor": tensor, "array": np.arange(3), "picture": picture("RGB", 4), "text": "ä", "none": None})
    assert (found["tensor"] == tensor.numpy()).all()
    assert (found["picture"] == np.asarray(picture("RGB", 4))).all()
    assert (found["text"], found["none"]) == ("ä".encode(), None)
    for name in ("tensor", "array", "picture"):
        with pytest.raises(ValueError, match="read-only"):
            found[name][0] = 0


def rotated():
    image = Image.new("RGB", (2, 3))
    image.getexif()[0x0112] = 6
    return image


def transparent():
    image = Image.new("L", (2, 3))
    image.info["transparency"] = 0
    return image


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Pair(1, 2), "Pair"),
        (OrderedDict(a=1), "OrderedDict"),
        (nn.Parameter(torch.ones(2)), "Parameter"),
        (torch.ones(2, requires_grad=True), "requires_grad=True"),
        (torch.ones(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
        (np.array([None]), "object"),
        (np.datetime64(1, "s"), "datetime64"),
        (2**63, "9223372036854775808 (int)"),
        (object(), "object"),
        ({("a",): 1}, "the key"),
        (Image.new("PA", (2, 2)), "mode PA"),
        (rotated(), "EXIF"),
        (transparent(), "transparent"),
    ],
)
def test_what_has_no_place_is_refused_with_its_place_and_a_remedy(value, what):
    with pytest.raises(DataFailed, match=r"it\['parts'\]\[1\] .*, which cannot be stored") as caught:
        packed({"parts": [1, value]}, "it")
    assert what in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize("form", [["tensor", "load", 1], ["tensor", "Tensor", 1], ["array", "|O", 1], ["exec"]])
def test_a_form_that_nothing_was_packed_with_is_refused(form):
    with pytest.raises(ValueError, match="no "):
        Unpacker(["tuple", [form]])
