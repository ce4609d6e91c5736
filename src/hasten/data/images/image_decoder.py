"""The bytes of an image file, made pixels: uint8, (height, width, 3), RGB, the right way up.

JPEG files go through libjpeg-turbo (simplejpeg), which gives Pillow's own pixels, bit for bit, in less time, lets other
threads run meanwhile, and can decode at a half, a quarter or an eighth of the size for less. CMYK and every other
format go through Pillow. Only greys of 16 bits are brought to 8 here.

An image file is untrusted. Its size is read from the header and refused before memory is allocated; so are files with
more scans than any encoder writes, and truncated ones, which libjpeg would fill with grey.

Sources: libjpeg-turbo's tj3Decompress8; ImageOps.exif_transpose in Pillow; ITU-T T.81, annex B; CIPA DC-008 (Exif
2.32); TIFF 6.0, section 2.
"""

from __future__ import annotations

import io
import os
import re
from typing import cast

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from hasten.errors import DataFailed

DENOMINATORS = (1, 2, 4, 8)  # a JPEG decodes at one over these for less than at full size
MOST_PIXELS = 1 << 26  # 200 MB decoded
MOST_SCANS = 100  # encoders write about ten
# Bytes that belong to no pixel, as cameras and editors leave them. Before a restart marker they are lost pixels.
_HARMLESS = re.compile("extraneous bytes before marker 0x(?!d[0-7])|Invalid SOS parameters")
DECODING = 2  # one more whenever the same bytes give other pixels: part of the key of image caches
OTHER_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM")

AS_STORED = 1
_ORIENTATION_TAG, _SHORT = 0x0112, 3
_APP1, _START_OF_SCAN, _FILL = 0xE1, 0xDA, 0xFF
_SEQUENTIAL = frozenset({0xC0, 0xC1, 0xC9})  # frames that one scan can hold
_WITHOUT_LENGTH = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})
_NAME = b"Exif\x00\x00"


class Encoded:
    """An image whose header was read and whose pixels were not.

    height, width: in pixels, after it is turned the right way up.
    denominators: at which parts of its size it can be decoded.

    Raises DataFailed, naming the file, when it is no image, is damaged, or has more than `most_pixels`.
    """

    def __init__(self, data: bytes, name: str, most_pixels: int = MOST_PIXELS) -> None:
        self._data, self._name, self._turbo, self._way = data, name, False, AS_STORED
        self.height, self.width, self._most_pixels = 0, 0, most_pixels
        self.denominators: tuple[int, ...] = (1,)
        if not data:
            raise refused(name, "is empty: zero bytes")
        try:
            if data[:3] == b"\xff\xd8\xff":
                self._read_jpeg_header()
            else:
                self._read_header(OTHER_FORMATS)
        except Exception as error:
            raise _named(name, error) from None

    def at(self, denominator: int) -> np.ndarray:
        """The pixels at one over a denominator of the size, rounded up."""
        try:
            if not self._turbo:
                return self._decoded_by_pillow()
            stored = self._decoded_by_turbo(denominator)
        except Exception as error:
            raise _named(self._name, error) from None
        return stored if self._way == AS_STORED else np.ascontiguousarray(turned(stored, self._way))

    def _decoded_by_turbo(self, denominator: int) -> np.ndarray:
        height, width = (-(-side // denominator) for side in self._stored)
        try:
            return simplejpeg.decode_jpeg(self._data, min_height=height, min_width=width, min_factor=denominator)
        except ValueError as warning:
            if not _HARMLESS.search(str(warning)):
                raise
        whole = self._opened(("JPEG",)).convert("RGB")
        return np.asarray(whole if denominator == 1 else whole.reduce(denominator))

    def _read_jpeg_header(self) -> None:
        self._way, one_scan = jpeg_header(self._data)
        if not one_scan and self._data.count(b"\xff\xda") > MOST_SCANS:
            raise refused(self._name, f"has more than {MOST_SCANS} scans")
        try:
            header = simplejpeg.decode_jpeg_header(self._data, strict=False)
        except KeyError:  # its name for "nothing found"
            raise ValueError("its header is incomplete") from None
        height, width, colours, _ = cast("tuple[int, int, str, str]", header)
        if colours not in ("YCbCr", "Gray", "RGB"):
            self._read_header(("JPEG",))
            return
        self._check_size(height, width)
        self._turbo, self._stored, self.denominators = True, (height, width), DENOMINATORS
        self.height, self.width = (width, height) if swaps_sides(self._way) else (height, width)

    def _read_header(self, formats: tuple[str, ...]) -> None:
        self._image = image = self._opened(formats)
        width, height = image.size
        self._check_size(height, width)
        if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
            raise refused(self._name, "has signed, 32-bit or floating-point greys, and nothing says which is white")
        # Pillow itself turns a TIFF file, whose Exif tags are its own, and has said the size that it then has. A PNG
        # file is decoded to find its tag, which may stand at its end.
        way = AS_STORED if image.format == "TIFF" else image.getexif().get(0x0112, AS_STORED)
        self.height, self.width = (width, height) if swaps_sides(way) else (height, width)

    def _check_size(self, height: int, width: int) -> None:
        if height * width > self._most_pixels:
            raise refused(self._name, f"has {height} × {width} pixels; {self._most_pixels} in all are allowed")

    def _decoded_by_pillow(self) -> np.ndarray:
        image = self._image
        ImageOps.exif_transpose(image, in_place=True)
        found = _rgb(image)
        if found.shape[:2] != (self.height, self.width):
            raise refused(self._name, f"says {self.height} × {self.width} pixels and has {found.shape[:2]}")
        return found

    def _opened(self, formats: tuple[str, ...]) -> Image.Image:
        return Image.open(io.BytesIO(self._data), formats=formats)


def refused(name: str, why: str) -> DataFailed:
    where = os.fsencode(name).decode("utf-8", "backslashreplace")  # a file's name may be no text
    return DataFailed(why, where=where, fix='remove the file, or write on_bad_sample="replace" in the job')


def _rgb(image: Image.Image) -> np.ndarray:
    """A whole image's pixels as Pillow converts them; greys of 16 bits by their higher byte, as Pillow itself takes
    colours of 16 bits. Its conversion would show all of them but the darkest 256 white."""
    if image.mode.startswith("I"):  # what opens as "I" here is a PGM, whose greys Pillow brings to 16 bits
        bits = image.tag_v2[258][0] if isinstance(image, TiffImageFile) else 16
        return np.repeat((np.asarray(image) >> (bits - 8)).astype(np.uint8)[..., None], 3, axis=2)
    # Pixels do not depend on it, and of some forms of it Pillow warns.
    image.info.pop("transparency", None)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _named(name: str, error: Exception) -> Exception:
    """Whatever a decoder raises for damaged data is one error that names the file. Decoders have no common base:
    OSError, ValueError, SyntaxError, struct.error, …"""
    if isinstance(error, DataFailed | MemoryError):  # the file's size was checked before
        return error
    said = " ".join(str(error).split()) or type(error).__name__
    why = f"none of {', '.join(OTHER_FORMATS)}" if isinstance(error, UnidentifiedImageError) else said
    return refused(name, f"is not an image that can be decoded: {why}")


def jpeg_header(data: bytes) -> tuple[int, bool]:
    """Orientation, 1 to 8, and whether one scan holds all pixels, as far as the headers of a JPEG file say it."""
    way, colours = AS_STORED, None
    place = 2  # after the marker that starts every JPEG
    while place + 5 <= len(data) and data[place] == 0xFF and (marker := data[place + 1]) not in _WITHOUT_LENGTH:
        if marker == _FILL:
            place += 1
            continue
        content, end = place + 4, place + 2 + max(int.from_bytes(data[place + 2 : place + 4], "big"), 2)
        if marker == _START_OF_SCAN:
            return way, data[content] == colours
        if marker in _SEQUENTIAL:
            colours = int.from_bytes(data[content + 5 : content + 6], "big")
        elif marker == _APP1 and way == AS_STORED and data[content : content + len(_NAME)] == _NAME:
            way = _tag(data[content + len(_NAME) : end])
        place = end
    return way, False


def turned(image: np.ndarray, way: int) -> np.ndarray:
    """The image (H, W, ...) turned the right way up; a view of the same memory. (W, H, ...) for ways 5 to 8."""
    if way in (5, 6, 7, 8):
        image = image.swapaxes(0, 1)
    if way in (2, 3, 6, 7):
        image = image[:, ::-1]
    if way in (3, 4, 7, 8):
        image = image[::-1]
    return image


def swaps_sides(way: int) -> bool:
    """Whether height and width change places when the image is turned."""
    return way in (5, 6, 7, 8)


def _tag(tiff: bytes) -> int:
    if tiff[:2] not in (b"II", b"MM"):
        return AS_STORED

    def number(place: int, size: int) -> int:
        return int.from_bytes(tiff[place : place + size], "little" if tiff[:2] == b"II" else "big")

    directory = number(4, 4)
    for entry in range(directory + 2, min(directory + 2 + 12 * number(directory, 2), len(tiff) - 11), 12):
        if number(entry, 2) == _ORIENTATION_TAG and number(entry + 2, 2) == _SHORT:
            found = number(entry + 8, 2)
            return found if 1 <= found <= 8 else AS_STORED
    return AS_STORED
