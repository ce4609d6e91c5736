"""What a JPEG file says of itself before its pixels begin: which way up it is to be shown, and whether one scan holds
all of them.

Cameras store the rows as the sensor reads them and add a number from 1 to 8 that says how to turn them. Opening the
file with a whole image library only to read that number does far more than that, so the few bytes are read here.
Whatever is damaged or missing counts as 1: as stored. What is said in XMP instead of Exif is not read.

A decoder goes over the whole picture once for every scan, and a file of a few kilobytes can hold thousands. Only a file
whose headers are whole and name a single scan is taken at its word; decoders stop there too.

Source: ITU-T T.81, B.1.1, B.1.1.2 (fill bytes), B.2.2, B.2.3 and table B.1; CIPA DC-008 (Exif 2.32), 4.5 and 4.6.4;
TIFF 6.0, section 2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

AS_STORED = 1
_ORIENTATION_TAG, _SHORT = 0x0112, 3
_APP1, _START_OF_SCAN, _FILL = 0xE1, 0xDA, 0xFF
_SEQUENTIAL = frozenset({0xC0, 0xC1, 0xC9})  # frames that one scan can hold
_WITHOUT_LENGTH = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})
_NAME = b"Exif\x00\x00"


class Stated(NamedTuple):
    orientation: int  # 1 to 8
    one_scan: bool  # False also where the headers leave it open


def stated(data: bytes) -> Stated:
    """Of a JPEG file's bytes."""
    way, colours = AS_STORED, None
    place = 2  # after the marker that starts every JPEG
    while place + 5 <= len(data) and data[place] == 0xFF and (marker := data[place + 1]) not in _WITHOUT_LENGTH:
        if marker == _FILL:
            place += 1
            continue
        content, end = place + 4, place + 2 + max(int.from_bytes(data[place + 2 : place + 4], "big"), 2)
        if marker == _START_OF_SCAN:
            return Stated(way, data[content] == colours)
        if marker in _SEQUENTIAL:
            colours = int.from_bytes(data[content + 5 : content + 6], "big")
        elif marker == _APP1 and way == AS_STORED and data[content : content + len(_NAME)] == _NAME:
            way = _tag(data[content + len(_NAME) : end])
        place = end
    return Stated(way, False)


def turned(picture: np.ndarray, way: int) -> np.ndarray:
    """The picture (H, W, ...) as it is to be shown; a view of the same memory. (W, H, ...) for ways 5 to 8."""
    if way in (5, 6, 7, 8):
        picture = picture.swapaxes(0, 1)
    if way in (2, 3, 6, 7):
        picture = picture[:, ::-1]
    if way in (3, 4, 7, 8):
        picture = picture[::-1]
    return picture


def swaps_sides(way: int) -> bool:
    """Whether height and width change places when the picture is turned."""
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
