"""Samples as bytes, and the same samples again."""

from __future__ import annotations

import enum
import io
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from hasten.data.cache.cache_unpacker import Unpacker
from hasten.data.cache.sample_format import ALIGNMENT, CannotKeep, difference, packed
from support.data.cached_samples import FORMS, MODES, picture, same

Pair = namedtuple("Pair", "left right")


class Colour(enum.IntEnum):
    RED = 1


def again(sample):
    taken = packed(sample)
    return Unpacker(taken.form).sample(list(taken.numbers), np.frombuffer(taken.values, np.uint8))


def viewed(sample):
    taken = packed(sample)
    return Unpacker(taken.form).view(list(taken.numbers), np.frombuffer(taken.values, np.uint8))


@given(form=FORMS, seed=st.integers(0, 20))
def test_a_sample_comes_back_bit_for_bit(form, seed):
    sample = form(seed)
    assert same(again(sample), sample)


@pytest.mark.parametrize(
    "value",
    [
        *(complex(1.5, -0.0), float("nan"), -7, True, None, "ä\udc80\0", b"\0\xff", np.int8(-3), np.float32(0.1)),
        *(torch.arange(6.0).reshape(2, 3).t(), torch.ones(3, dtype=torch.bfloat16), torch.tensor(5, dtype=torch.int16)),
        *(np.arange(6).reshape(2, 3).T, np.array(2.5), np.arange(4, dtype=">i2")),
        pytest.param(picture("I", 14), id="picture"),  # its repr holds its address, another in each process
    ],
    ids=repr,
)
def test_every_kind_of_end_comes_back_whatever_it_stands_between(value):
    sample = ("first", torch.ones(2, 3), value, {"last": 7, "value": value})
    assert same(again(sample), sample)
    first, _, shown, last = viewed(sample)
    assert (first, last["last"]) == ("first", 7)
    if isinstance(value, np.ndarray) or not isinstance(value, torch.Tensor | Image.Image):
        assert same(shown, value)


@given(form=FORMS, seed=st.integers(0, 20))
def test_the_numbers_of_the_index_are_as_many_as_the_form_says(form, seed):
    taken = packed(form(seed))
    assert len(taken.numbers) == Unpacker(taken.form).numbers
    assert len(taken.values) % ALIGNMENT == 0


@pytest.mark.parametrize("mode", MODES)
def test_what_follows_a_picture_is_found_behind_its_pixels_and_its_palette(mode):
    sample = [picture(mode, 14), 5, picture(mode, 3), "text"]
    assert same(again(sample), sample)
    assert viewed(sample)[1::2] == [5, "text"]


@pytest.mark.parametrize("mode", MODES)
def test_a_picture_of_every_mode_comes_back(mode):
    assert same(again(picture(mode, 14)), picture(mode, 14))


def test_a_picture_with_a_palette_shows_the_same_colours():
    image = picture("P", 3)
    assert again(image).convert("RGB").tobytes() == image.convert("RGB").tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_a_view_of_a_picture_of_every_mode_shows_its_pixels(mode):
    image = picture(mode, 14)
    wanted = np.asarray(image.convert("L") if mode == "1" else image)
    (shown,) = viewed([image])
    assert (shown.dtype, shown.shape) == (wanted.dtype, wanted.shape)
    assert shown.tobytes() == wanted.tobytes()


def test_a_palette_keeps_how_far_its_colours_can_be_seen_through():
    image = picture("P", 3)
    image.putpalette(bytes(range(40, 48)), "RGBA")
    assert again(image).palette.mode == "RGBA"
    assert again(image).convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


def test_a_picture_of_a_file_comes_back_without_the_file():
    stream = io.BytesIO()
    picture("RGB", 4).save(stream, "PNG")
    opened = Image.open(stream)
    assert same(again(opened), picture("RGB", 4))


@pytest.mark.trap(41)
def test_to_change_a_sample_changes_nothing_that_it_was_made_from():
    sample = (torch.zeros(3), np.zeros(3), picture("RGB", 1))
    taken = packed(sample)
    memory = np.frombuffer(bytearray(taken.values), np.uint8)
    given_out = Unpacker(taken.form).sample(list(taken.numbers), memory)
    given_out[0].fill_(1)
    given_out[1].fill(1)
    given_out[2].putpixel((0, 0), (255, 255, 255))
    assert memory.tobytes() == taken.values


@pytest.mark.trap(41)
def test_a_view_shows_the_same_and_cannot_be_written():
    tensor = torch.arange(6.0).reshape(2, 3).t()
    found = viewed({"tensor": tensor, "array": np.arange(3), "picture": picture("RGB", 4), "text": "ä", "none": None})
    assert (found["tensor"] == tensor.numpy()).all()
    assert found["tensor"].strides == (4, 12)
    assert (found["picture"] == np.asarray(picture("RGB", 4))).all()
    assert (found["text"], found["none"]) == ("ä", None)
    for name in ("tensor", "array", "picture"):
        with pytest.raises(ValueError, match="read-only"):
            found[name][0] = 0


def test_a_view_of_a_dtype_that_numpy_has_not_is_its_bytes():
    found = viewed(torch.ones(2, 3, dtype=torch.bfloat16))
    assert (found.dtype, found.shape) == (np.uint8, (12,))


def test_elements_that_do_not_lie_side_by_side_come_back_contiguous():
    expanded = torch.arange(3.0).expand(4, 3)
    stepped = np.arange(12).reshape(3, 4)[:, ::-2]
    assert again(expanded).equal(expanded)
    assert again(expanded).is_contiguous()
    assert (again(stepped) == stepped).all()
    assert again(stepped).flags.c_contiguous


def test_a_view_that_is_to_be_conjugated_or_negated_comes_back_as_it_reads():
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    assert again(numbers.conj()).equal(torch.tensor([1 - 2j, 3 + 4j]))
    assert again(numbers.conj().imag).equal(numbers.conj().imag)


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
        (Colour.RED, "Colour"),
        (nn.Parameter(torch.ones(2)), "Parameter"),
        (torch.ones(2, requires_grad=True), "requires_grad=True"),
        (torch.ones(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
        (np.array(["a"]), "<U1"),
        (np.array([None]), "object"),
        (np.datetime64(1, "s"), "datetime64"),
        (2**63, "64 bits"),
        ({1, 2}, "set"),
        (object(), "object"),
        ({("a",): 1}, "the key"),
        (Image.new("PA", (2, 2)), "mode PA"),
        (rotated(), "EXIF"),
        (transparent(), "transparent"),
    ],
)
def test_what_has_no_place_is_refused_with_its_place_and_a_remedy(value, what):
    with pytest.raises(CannotKeep) as caught:
        packed({"parts": [1, value]})
    assert caught.value.place == "['parts'][1]"
    assert what in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ((1, 2.0), (1, 2), "[1] is int, and was float"),
        ({"a": [1, None]}, {"a": [1, "b"]}, "['a'][1] is str, and was none"),
        ((1,), (1, 2), "it is a tuple of 2, and was a tuple of 1"),
        ({"a": 1}, {"b": 1}, "it is a dictionary with the keys 'b', and was a dictionary with the keys 'a'"),
        (torch.ones(2), torch.ones(2, 2), "it is a tensor of float32 with 2 dimensions, and was a tensor of float32"),
        (np.ones(2), torch.ones(2), "it is a tensor of float32 with 1 dimensions, and was an array of <f8"),
    ],
)
def test_two_forms_are_told_apart_in_words(one, other, words):
    assert words in (difference(packed(other).form, packed(one).form) or "")


def test_two_like_forms_differ_nowhere():
    assert difference(packed((1, "a")).form, packed((2, "bc")).form) is None


@pytest.mark.parametrize("form", [["tensor", "load", 1], ["tensor", "Tensor", 1], ["array", "|O", 1], ["exec"]])
def test_a_form_that_nothing_was_packed_with_is_refused(form):
    with pytest.raises(ValueError, match="no "):
        Unpacker(["tuple", [form]])
