"""The C form of a resized crop computes torch's numbers bit for bit, and reads nothing beside the image."""

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from hasten.errors import Misconfigured
from hasten.kernels.resampling import resized_crop
from hasten.kernels.resampling.resized_crop import Layout, resized_crops
from support.data.image_cases import pixels

SCALE, OFFSET = torch.tensor([0.017, 0.0174, 0.0175]), torch.tensor([-2.1, -2.03, -1.8])
FORMS = {"plain": resized_crop.PlainCrops, "compiled": resized_crops}
SIZES = [(224, 224), (300, 500), (16, 16), (7, 90), (1, 1), (225, 223)]

needs_compiled = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def made(form, layout, size, picture, box):
    batch = torch.full(layout.shape(3, size), 7, dtype=layout.dtype)
    form(batch, layout, SCALE, OFFSET)(1, picture, box)
    assert (batch[[0, 2]] == 7).all(), "other places of the batch do not change"
    return batch[1]


def as_bytes(form, size, picture, box):
    return made(form, Layout.BYTES, size, picture, box).numpy()


@st.composite
def parts(draw):
    height, width = draw(st.integers(1, 120)), draw(st.integers(1, 120))
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    box = top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left)), draw(st.booleans())
    return pixels(height, width, draw(st.integers(0, 5))), box


@needs_compiled
@settings(max_examples=100)
@example((pixels(1, 1), (0, 0, 1, 1, True)), 1, Layout.PLANES)
@example((pixels(375, 500), (0, 0, 375, 500, False)), 224, Layout.CHANNELS_LAST)
@example((pixels(2000, 3), (0, 0, 2000, 3, False)), 2, Layout.BYTES)
@given(parts(), st.integers(1, 100), st.sampled_from(Layout))
def test_the_c_form_gives_the_numbers_of_the_plain_one(part, size, layout):
    found, wanted = (made(form, layout, size, *part) for form in FORMS.values())
    assert torch.equal(found, wanted)


@needs_compiled
@pytest.mark.proof
@pytest.mark.parametrize("size", [224, 160])
def test_no_side_of_an_image_is_rounded_differently(size):
    """Where a weight lies in the middle between two whole numbers, the order of operations decides."""
    line = pixels(1, 700)
    for width in range(1, 701):
        box = 0, 0, 1, width, False
        assert np.array_equal(*(as_bytes(form, size, line, box)[:1] for form in FORMS.values())), width


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("size", "mirrored"), [(32, False), (224, True)])
def test_both_forms_give_pillows_pixels_but_for_one_level_in_one_of_fifty(form, size, mirrored):
    for height, width in SIZES:
        check_pillow(form, height, width, size, mirrored)


def check_pillow(form, height, width, size, mirrored):
    picture, top, left = pixels(height, width), height // 5, width // 7
    tall, wide = height - top - height // 6, width - left - width // 8
    part = Image.fromarray(picture).crop((left, top, left + wide, top + tall))
    wanted = np.asarray(part.resize((size, size), Image.Resampling.BILINEAR))[:, :: -1 if mirrored else 1]
    apart = np.abs(as_bytes(form, size, picture, (top, left, tall, wide, mirrored)).astype(int) - wanted)
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.02


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    "seen",
    [lambda whole: whole, lambda whole: whole[::2, ::3], lambda whole: whole[:, ::-1], lambda whole: whole[::-1]],
)
def test_an_image_may_be_read_only_and_have_any_strides(form, seen):
    image = seen(pixels(90, 90))
    box, before = (2, 3, image.shape[0] - 5, image.shape[1] - 4, False), image.copy()
    image.flags.writeable = False
    assert np.array_equal(as_bytes(form, 16, image, box), as_bytes(form, 16, before, box))
    assert np.array_equal(image, before)


OUTSIDE = [(0, 0, 41, 30), (0, 0, 40, 31), (-1, 0, 5, 5), (0, -1, 5, 5), (5, 5, 0, 5), (5, 5, 5, 0), (38, 0, 3, 3)]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_box_outside_the_image_and_what_is_no_image_or_place_are_refused(form):
    for box in OUTSIDE:
        with pytest.raises(Misconfigured, match="is not inside an image of 40 × 30"):
            made(form, Layout.BYTES, 8, pixels(40, 30), (*box, False))
    put = form(torch.empty(Layout.BYTES.shape(2, 4), dtype=torch.uint8), Layout.BYTES, SCALE, OFFSET)
    whole = pixels(9, 9)
    for place, image in ((2, whole), (-1, whole), (0, whole[..., 0]), (0, whole[..., :1]), (0, whole.astype(np.int16))):
        with pytest.raises(ValueError, match="cannot put an image"):
            put(place, image, (0, 0, 9, 9, False))


@needs_compiled
@pytest.mark.parametrize("layout", Layout)
def test_a_batch_may_start_at_any_address(layout):
    """Whole vectors go past the caches only to where they fit."""
    part, shape = (pixels(50, 60), (3, 4, 40, 50, True)), layout.shape(1, 16)
    batch = torch.empty(1 + math.prod(shape), dtype=layout.dtype)[1:].view(shape)
    resized_crops(batch, layout, SCALE, OFFSET)(0, *part)
    assert torch.equal(batch[0], made(resized_crop.PlainCrops, layout, 16, *part))


SANITIZED = """
import ctypes, sys
import numpy as np
from pathlib import Path
from hasten.kernels import native_code
from hasten.kernels.resampling import resized_crop
native_code.FLAGS = (*native_code.FLAGS, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
assert resized_crop.why_plain() is None, resized_crop.why_plain()
import torch
from hasten.kernels.resampling.resized_crop import Layout, resized_crops
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
draw = np.random.default_rng(int(sys.argv[1]))
scale = torch.ones(3)
for _ in range(int(sys.argv[2])):
    height, width, size = (int(n) for n in draw.integers(1, (60, 60, 40)))
    tall, wide = int(draw.integers(1, height + 1)), int(draw.integers(1, width + 1))
    top, left = int(draw.integers(0, height - tall + 1)), int(draw.integers(0, width - wide + 1))
    layout = Layout(int(draw.integers(3)))
    # Memory of the picture's exact size, so that one byte beside it is found. Its lines may be apart.
    apart = int(draw.integers(0, 9)) * int(draw.integers(2))
    address = libc.malloc(height * (apart + width) * 3)
    memory = (ctypes.c_uint8 * (height * (apart + width) * 3)).from_address(address)
    picture = np.frombuffer(memory, np.uint8).reshape(height, apart + width, 3)[:, apart:]
    picture[:] = 9
    out_bytes = size * size * 3 * layout.dtype.itemsize
    place = libc.malloc(out_bytes)
    held = (ctypes.c_uint8 * out_bytes).from_address(place)
    batch = torch.frombuffer(held, dtype=layout.dtype).view(layout.shape(1, size))
    put = resized_crops(batch, layout, scale, torch.zeros(3))
    put(0, picture, (top, left, tall, wide, bool(draw.integers(2))))
    assert (batch == 9).all()
    libc.free(address), libc.free(place)
print("clean")
"""


@pytest.mark.proof
@needs_compiled
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitiser is loaded the way that Linux does it")
@pytest.mark.parametrize("flags", ["", pytest.param("-mno-avx2", marks=pytest.mark.proof)], ids=["vectors", "plain C"])
def test_no_byte_beside_the_image_or_the_batch_is_accessed(flags, tmp_path):
    runtime = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    if not Path(runtime.stdout.strip()).is_absolute():
        pytest.skip("this compiler has no address sanitiser")
    environment = os.environ | {
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "XDG_CACHE_HOME": str(tmp_path),
        "CC": f"cc {flags}",
    }
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED, "0", "300"], capture_output=True, text=True, env=environment, timeout=170
    )
    assert done.stdout == "clean\n", done.stderr[-2000:]
