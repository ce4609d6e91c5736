"""Every picture file gives Pillow's own pixels, the right way up, or one error that names it."""

import io
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile

from data.pictures import exif, file_of, image, jpeg, segment, with_segments, with_size
from hasten.data.images.image_decoder import MOST_SCANS, Encoded
from hasten.errors import DataFailed

SIZES = [(37, 53), (8, 8), (1, 1), (1, 40), (64, 17)]
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
    "palette": ("P", "PNG", {}),
    "palette with alpha": ("P", "PNG", {"transparency": 3}),
    "palette with alphas": ("P", "PNG", {"transparency": bytes(range(9, 200))}),
    "alpha": ("RGBA", "PNG", {}),
    "grey with alpha": ("LA", "PNG", {}),
    "1 bit": ("1", "PNG", {}),
    "grey PNG": ("L", "PNG", {}),
    "WebP": ("RGB", "WEBP", {}),
    "WebP without loss": ("RGB", "WEBP", {"lossless": True}),
    "WebP with alpha": ("RGBA", "WEBP", {}),
    "BMP": ("RGB", "BMP", {}),
    "BMP with a palette": ("P", "BMP", {}),
    "TIFF": ("RGB", "TIFF", {}),
    "TIFF, deflated": ("RGB", "TIFF", {"compression": "tiff_deflate"}),
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


# Pillow's pixels


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


def test_greys_of_16_bits_are_turned_too():
    data = file_of(Image.fromarray(RAMP), "PNG", exif=exif(6))
    assert np.array_equal(shown(data)[..., 1], np.rot90(RAMP >> 8, -1))


def test_greys_of_12_bits_keep_their_higher_byte():
    tag = "<HHII"
    data = file_of(Image.fromarray(np.full((4, 6), 0xABCD, np.uint16)), "TIFF")
    assert data.count(struct.pack(tag, 258, 3, 1, 16)) == 1
    data = data.replace(struct.pack(tag, 258, 3, 1, 16), struct.pack(tag, 258, 3, 1, 12))
    data = data.replace(b"\xcd\xab" * 24, b"\xab\xca\xbc" * 12 + bytes(12))
    assert (shown(data) == 0xAB).all()


def test_a_pgm_file_is_as_white_as_it_says():
    data = b"P5 2 1 1000\n" + struct.pack(">HH", 500, 1000)
    assert shown(data)[..., 0].tolist() == [[128, 255]]


@pytest.mark.parametrize("number", [np.int32, np.float32])
def test_greys_of_which_nothing_says_what_is_white_are_refused(number):
    data = file_of(Image.fromarray(np.ones((3, 5), number)), "TIFF")
    with pytest.raises(DataFailed, match="no file says which of them is white") as refusal:
        Encoded(data, "deep.tif")
    assert (refusal.value.where, refusal.value.fix) == ("deep.tif", "save it with 8 or 16 bits a pixel")


def test_fractions_in_a_file_of_greys_are_refused_by_whatever_name():
    with pytest.raises(DataFailed, match="no file says which of them is white"):
        Encoded(b"Pf\n2 1\n-1.0\n" + struct.pack("<ff", 0.5, 1.0), "grey.pgm")


def test_colours_of_four_inks_as_photoshop_writes_them_are_pillows():
    data = bytearray(file_of(image(20, 30, "CMYK"), "JPEG"))
    marker = data.find(b"Adobe\0")
    data[marker + 11] = 2  # YCCK
    assert simplejpeg.decode_jpeg_header(bytes(data))[2] == "YCCK"
    assert np.array_equal(shown(bytes(data)), as_pillow_shows(bytes(data)))


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


def test_the_smallest_pictures_are_rounded_up_too():
    for height, width in [(5, 6), (7, 3), (9, 1), (1, 17), (15, 16)]:
        for denominator in (2, 4, 8):
            shown(jpeg(height, width), denominator)


@pytest.mark.parametrize("way", range(1, 9))
@pytest.mark.parametrize("denominator", [2, 4, 8])
def test_a_scaled_picture_looks_like_the_whole_one_made_smaller(way, denominator):
    data = jpeg(160, 240, exif=exif(way))
    wanted = np.asarray(Image.fromarray(shown(data)).reduce(denominator), dtype=float)
    assert np.abs(shown(data, denominator) - wanted).mean() < 4


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("way", range(10))
def test_every_format_is_shown_the_right_way_up(form, way):
    data = file_of(image(30, 50), form, exif=exif(way))
    assert shown(data).shape == ((50, 30, 3) if way in (5, 6, 7, 8) else (30, 50, 3))
    assert np.array_equal(shown(data), as_pillow_shows(data))


def test_four_inks_are_turned_too():
    data = file_of(image(30, 50, "CMYK"), "JPEG", exif=exif(6))
    assert np.array_equal(shown(data), as_pillow_shows(data))


# What is unusual, and read all the same


@pytest.mark.parametrize("way", [1, 6])
def test_bytes_that_belong_to_no_pixel_are_passed_over_as_pillow_does(way):
    plain = jpeg(60, 90, exif=exif(way))
    start = plain.find(b"\xff\xc0")
    for data in (
        plain[:-2] + b"\x12\x34\x56" + plain[-2:],
        plain + b"what a camera adds",
        plain + plain,
        plain[:start] + b"\0\0" + plain[start:],
    ):
        assert np.array_equal(shown(data), as_pillow_shows(plain))
        for denominator in (2, 4, 8):
            apart = np.abs(shown(data, denominator).astype(float) - shown(plain, denominator))
            assert apart.mean() < 3


def test_bytes_that_belong_to_no_pixel_do_not_hide_that_a_file_is_cut_off():
    plain = jpeg(160, 90, progressive=True)
    second = plain.find(b"\xff\xda", plain.find(b"\xff\xda") + 2)
    data = plain[:second] + b"\x12\x34" + plain[second:]
    assert np.array_equal(shown(data), as_pillow_shows(data))
    assert "truncated" in message(data[:-200])


def test_an_ending_says_nothing_of_what_a_file_is():
    assert np.array_equal(Encoded(file_of(image(9, 9), "PNG"), "it.jpg").at(1), np.asarray(image(9, 9)))


# What is refused


def test_a_header_that_is_cut_off_is_said_to_be():
    assert message(jpeg(20, 20)[:50]).endswith("its header is not whole")


def test_a_file_without_bytes_is_said_to_be_empty():
    assert message(b"") == "is empty: zero bytes"


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_file_that_is_cut_off_is_refused_wherever_that_is(mode, progressive):
    data = file_of(image(60, 50, mode), "JPEG", progressive=progressive)
    for end in {*range(1, len(data) - 2, 97), len(data) - 3, len(data) - 60}:
        assert "is no picture that can be decoded" in message(data[:end])


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_another_format_that_is_cut_off_is_refused(form):
    data = file_of(image(60, 50), form)
    for end in (1, 10, 40, len(data) // 2, len(data) - 60):
        assert "is no picture that can be decoded" in message(data[:end])


def test_damage_among_the_pixels_of_a_jpeg_file_is_found():
    data = bytearray(jpeg(200, 200, restart_marker_blocks=2))
    place = data.find(b"\xff\xda") + 200
    data[place : place + 300] = bytes(300)
    assert "Corrupt JPEG data" in message(bytes(data))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM"])
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


def test_many_scans_without_progression_are_refused_too():
    data = jpeg(16, 16, subsampling=0)
    start = data.find(b"\xff\xda")
    red = segment(0xDA, bytes([1, data[start + 5], 0, 0, 63, 0])) + b"\x00" * 40
    assert message(data[:start] + red * (MOST_SCANS + 1) + data[-2:]) == f"has more than {MOST_SCANS} scans"


def test_a_marker_of_a_scan_among_other_bytes_is_not_counted():
    data = with_segments(jpeg(16, 16), [segment(0xE5, b"\xff\xda" * 500)])
    assert np.array_equal(shown(data), as_pillow_shows(data))


def test_a_name_that_is_no_text_can_be_printed():
    with pytest.raises(DataFailed) as refusal:
        Encoded(b"", "b\udcff.jpg")
    assert str(refusal.value).encode("utf-8").startswith(rb"b\xff.jpg: is empty")


@pytest.mark.parametrize("kind", [MemoryError, KeyboardInterrupt])
def test_a_lack_of_memory_and_a_persons_wish_to_end_are_no_fault_of_the_files(monkeypatch, kind):
    def ended(*arguments, **named):
        raise kind

    monkeypatch.setattr(simplejpeg, "decode_jpeg", ended)
    with pytest.raises(kind):
        Encoded(jpeg(8, 8), "a.jpg").at(1)


def test_the_wrappers_own_words_for_a_lack_of_memory_are_known_too(monkeypatch):
    def lacking(*arguments, **named):
        raise ValueError("tj3Decompress8(): Memory allocation failure")

    monkeypatch.setattr(simplejpeg, "decode_jpeg", lacking)
    with pytest.raises(MemoryError, match=r"no memory to decode a\.jpg: tj3"):
        Encoded(jpeg(8, 8), "a.jpg").at(1)


IN_LITTLE_MEMORY = """
import resource
import sys
from pathlib import Path
from hasten.data.images.image_decoder import Encoded

picture = Encoded(Path(sys.argv[1]).read_bytes(), "folder/it.jpg")
limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (4 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    picture.at(8)
except Exception as error:
    print(f"{type(error).__name__}: {error}; {type(error.__cause__).__name__}")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell a process's size")
def test_a_lack_of_memory_inside_libjpeg_is_no_fault_of_the_files(tmp_path):
    # Of a progressive file it keeps all coefficients, here 32 MB, whatever the size that is asked for, here 750 kB.
    path = tmp_path / "it.jpg"
    path.write_bytes(file_of(Image.new("L", (4000, 4000), 99), "JPEG", progressive=True))
    run = subprocess.run([sys.executable, "-c", IN_LITTLE_MEMORY, path], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("MemoryError: no memory to decode folder/it.jpg: Insufficient memory")
    assert run.stdout.endswith("; ValueError\n")
    assert run.stderr == ""


def test_what_a_decoder_said_is_the_cause_and_that_none_knows_a_file_is_said_without_one():
    with pytest.raises(DataFailed, match="decoded: Premature end of JPEG file") as refusal:
        Encoded(jpeg(60, 50)[:-60], "it.jpg").at(1)
    assert type(refusal.value.__cause__) is ValueError
    with pytest.raises(DataFailed) as refusal:
        Encoded(b"a text", "it.jpg")
    assert refusal.value.what == "is no picture that can be decoded: none of JPEG, PNG, WEBP, BMP, TIFF, PPM"
    assert refusal.value.__cause__ is None
    assert type(refusal.value.__context__) is UnidentifiedImageError
    assert refusal.value.__suppress_context__


@pytest.mark.parametrize(
    ("error", "why"),
    [(EOFError(), "EOFError"), (ValueError(" \n"), "ValueError"), (ValueError("no\n\tpixels\n"), "no pixels")],
)
def test_why_a_file_cannot_be_decoded_is_said_in_one_line_and_never_left_out(monkeypatch, error, why):
    def broken(self):
        raise error

    monkeypatch.setattr(PngImageFile, "load", broken)
    assert message(file_of(image(9, 9), "PNG")) == f"is no picture that can be decoded: {why}"
