"""What a JPEG file says of itself: the same as Pillow reads in it, and nothing at all in rubbish."""

import io

from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from hasten.data.images.image_decoder import AS_STORED, jpeg_header
from support.data.image_cases import ORDERS, exif, jpeg, segment, with_segments

PLAIN = jpeg(24, 16)
OTHERS = st.lists(
    st.sampled_from(
        [segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"), segment(0xE2, b"ICC" * 9), segment(0xFE, b"a comment")]
    )
)


def as_pillow_says(data):
    return Image.open(io.BytesIO(data)).getexif().get(0x0112, AS_STORED)


@given(
    data=st.binary(max_size=400), start=st.sampled_from([b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xe1\x00\x20Exif\0\0II"])
)
@example(data=b"\xff" * 300, start=b"\xff\xd8")
@example(data=b"\xff\xe0\x00\x00" * 50, start=b"\xff\xd8")
def test_any_bytes_are_answered_with_an_orientation_from_1_to_8(data, start):
    assert 1 <= jpeg_header(start + data)[0] <= 8


@given(
    orientation=st.integers(0, 10),
    order=st.sampled_from(sorted(ORDERS)),
    before=OTHERS,
    tags=st.integers(0, 5),
    fill=st.integers(0, 3),
)
def test_the_orientation_is_what_pillow_reads(orientation, order, before, tags, fill):
    block = b"\xff" * fill + segment(0xE1, exif(orientation, order, tags))
    data = with_segments(PLAIN, [*before, block])
    found = as_pillow_says(data)
    assert found == orientation
    assert jpeg_header(data)[0] == (found if 1 <= found <= 8 else AS_STORED)


def test_one_scan_is_believed_only_where_the_headers_are_whole():
    start = PLAIN.find(b"\xff\xda")
    assert jpeg_header(PLAIN)[1]
    assert jpeg_header(jpeg(16, 16, subsampling=2, restart_marker_blocks=1))[1]
    assert not jpeg_header(jpeg(16, 16, progressive=True))[1]
    assert not jpeg_header(PLAIN[:start])[1]
    one_of_three = bytearray(PLAIN)
    one_of_three[start + 4] = 1
    assert not jpeg_header(bytes(one_of_three))[1]
    for hidden in (b"\xff\x01", b"\xff\xd0", b"\x00"):  # a decoder goes on after these; what it finds is not known here
        assert not jpeg_header(with_segments(PLAIN, [hidden]))[1]
