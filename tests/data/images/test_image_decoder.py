"""Every picture file gives Pillow's own pixels, the right way up, or one error that names it."""

import io
import warnings

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from hasten.data.images.image_decoder import MOST_SCANS, Encoded
from hasten.errors import DataFailed
from support.data.image_cases import exif, file_of, image, jpeg, with_segments, with_size

SIZES = [(37, 53), (1, 40)]
JPEGS = {
    "4:4:4": ("RGB", {"subsampling": 0}),
    "4:2:2": ("RGB", {"subsampling": 1}),
    "4:2:0": ("RGB", {"subsampling": 2}),
    "grey": ("L", {}),
    "progressive": ("RGB", {"progressive": True}),
    "restart markers": ("RGB", {"restart_marker_blocks": 3}),
    "stored as RGB": ("RGB", {"keep_rgb": True}),
}
OTHERS = {
    "CMYK": ("CMYK", "JPEG", {}),
    "palette with alphas": ("P", "PNG", {"transparency": bytes(range(9, 200))}),
    "alpha": ("RGBA", "PNG", {}),
    "grey with alpha": ("LA", "PNG", {}),
    "1 bit": ("1", "PNG", {}),
    "WebP with alpha": ("RGBA", "WEBP", {}),
    "BMP": ("RGB", "BMP", {}),
    "TIFF": ("RGB", "TIFF", {}),
    "TIFF with JPEG in it": ("RGB", "TIFF", {"compression": "jpeg"}),
    "PPM": ("RGB", "PPM", {}),
    "PGM": ("L", "PPM", {}),
}


def as_pillow_shows(data):
    return np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def shown(data, denominator=1):
    picture = Encoded(data, "it.jpg")
    found = picture.at(denominator)
    assert found.dtype == np.uint8
    assert found.shape == (-(-picture.height // denominator), -(-picture.width // denominator), 3)
    return found


def message(data, **arguments):
    with pytest.raises(DataFailed) as refusal:
        Encoded(data, "folder/it.jpg", **arguments).at(1)
    assert refusal.value.where == "folder/it.jpg"
    assert "replace" in refusal.value.fix
    return refusal.value.what


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize(("mode", "options"), JPEGS.values(), ids=JPEGS)
def test_a_jpeg_file_has_pillows_pixels_bit_for_bit(mode, options, height, width):
    data = file_of(image(height, width, mode), "JPEG", **options)
    assert Encoded(data, "it.jpg").denominators == (1, 2, 4, 8)
    assert np.array_equal(shown(data), as_pillow_shows(data))


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize(("mode", "form", "options"), OTHERS.values(), ids=OTHERS)
def test_every_other_format_has_pillows_pixels(mode, form, options, height, width):
    data = file_of(image(height, width, mode), form, **options)
    assert Encoded(data, "it").denominators == (1,)
    found = shown(data)  # outside of what follows: it is to warn of nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.array_equal(found, as_pillow_shows(data))


RAMP = np.arange(65536, dtype=np.uint16).reshape(128, 512)


@pytest.mark.parametrize(("form", "order"), [("PNG", "<u2"), ("PPM", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2")])
def test_greys_of_16_bits_keep_their_higher_byte(form, order):
    mode = "I;16" if order == "<u2" else "I;16B"
    data = file_of(Image.frombytes(mode, (512, 128), RAMP.astype(order).tobytes()), form)
    assert np.array_equal(shown(data), np.repeat((RAMP >> 8)[..., None], 3, axis=2))


@settings(max_examples=25)
@given(
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    orientation=st.integers(0, 9),
    subsampling=st.sampled_from([0, 1, 2]),
    progressive=st.booleans(),
)
def test_a_scaled_picture_is_rounded_up_and_stands_as_the_whole_one(
    height, width, orientation, subsampling, progressive
):
    block = exif(orientation)
    data = jpeg(height, width, exif=block, subsampling=subsampling, progressive=progressive)
    whole = as_pillow_shows(data)
    assert np.array_equal(shown(data), whole)
    for denominator in (2, 4, 8):
        small = shown(data, denominator)
        assert small.shape[:2] == (-(-whole.shape[0] // denominator), -(-whole.shape[1] // denominator))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("way", range(10))
def test_every_format_is_shown_the_right_way_up(form, way):
    data = file_of(image(30, 50), form, exif=exif(way))
    assert shown(data).shape == ((50, 30, 3) if way in (5, 6, 7, 8) else (30, 50, 3))
    assert np.array_equal(shown(data), as_pillow_shows(data))


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_file_that_is_cut_off_is_refused_wherever_that_is(mode, progressive):
    data = file_of(image(60, 50, mode), "JPEG", progressive=progressive)
    for end in {*range(1, len(data) - 2, 97), len(data) - 3, len(data) - 60}:
        assert "is not an image that can be decoded" in message(data[:end])


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
def test_a_size_beyond_the_limit_is_refused_before_memory_is_asked_for(form):
    plain = file_of(image(16, 16), form)
    assert "has 9000 × 8000 pixels; 67108864 in all are allowed" in message(with_size(plain, 9000, 8000))
    assert "has 16 × 16 pixels; 255 in all" in message(plain, most_pixels=255)
    assert Encoded(plain, "it", most_pixels=256).at(1).shape == (16, 16, 3)


def bomb(scans, mode="L"):
    data = file_of(image(16, 16, mode), "JPEG", progressive=True)
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + last * (scans - data.count(b"\xff\xda")) + data[-2:]


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_more_scans_than_any_encoder_writes_are_refused(mode):
    assert message(bomb(MOST_SCANS + 1, mode)) == f"has more than {MOST_SCANS} scans"
    hidden = with_segments(bomb(MOST_SCANS + 1, mode), [b"\xff\xd0"])  # so that the walk over the headers ends early
    assert message(hidden) == f"has more than {MOST_SCANS} scans"


def test_a_lack_of_memory_is_no_fault_of_the_files(monkeypatch):
    def ended(*arguments, **named):
        raise MemoryError

    monkeypatch.setattr(simplejpeg, "decode_jpeg", ended)
    with pytest.raises(MemoryError):
        Encoded(jpeg(8, 8), "a.jpg").at(1)
