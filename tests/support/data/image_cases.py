"""Picture files for tests: small ones of every kind, folders of them, and files that are damaged or meant to harm."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

ORDERS = {"little": b"II", "big": b"MM"}


def pixels(height: int, width: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    """Waves with a little noise: uint8 (height, width, channels), no row or column like another."""
    random = np.random.default_rng(seed)
    down, across = np.mgrid[:height, :width]
    waves = [np.sin(down / (5 + each) + seed) + np.cos(across / (7 - each)) for each in range(channels)]
    noisy = 127 + 55 * np.stack(waves, axis=-1) + random.normal(0, 6, (height, width, channels))
    return noisy.clip(0, 255).astype(np.uint8)


def image(height: int, width: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    picture = Image.fromarray(pixels(height, width, seed))
    if mode == "RGBA":
        picture.putalpha(Image.fromarray(pixels(height, width, seed + 1)[..., 0]))
    elif mode == "I;16":
        picture = Image.fromarray(pixels(height, width, seed)[..., 0].astype(np.uint16) * 257)
    else:
        picture = picture.convert(mode)
    return picture


def file_of(picture: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, form, **options)
    return stream.getvalue()


def jpeg(height: int, width: int, seed: int = 0, **options: Any) -> bytes:
    return file_of(image(height, width, seed=seed), **({"quality": 90} | options))


def exif(orientation: int, order: str = "little", before: int = 0) -> bytes:
    """An Exif block that says how to turn a picture, after so many other tags."""
    number = {"little": "<", "big": ">"}[order]
    others = b"".join(struct.pack(number + "HHII", 0x0100 + each, 4, 1, 7) for each in range(before))
    tag = struct.pack(number + "HHIHH", 0x0112, 3, 1, orientation, 0)
    count = struct.pack(number + "H", before + 1)
    return (
        b"Exif\0\0"
        + ORDERS[order]
        + struct.pack(number + "HI", 42, 8)
        + count
        + others
        + tag
        + struct.pack(number + "I", 0)
    )


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def with_segments(data: bytes, segments: Iterable[bytes]) -> bytes:
    """A JPEG file with more segments right after its start."""
    return data[:2] + b"".join(segments) + data[2:]


def write(root: Path, files: dict[str, bytes]) -> Path:
    """Files by their names below root, which may hold folders."""
    for name, data in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    return root


def photos(root: Path, count: int = 12, classes: int = 3) -> Path:
    """A folder of class folders: JPEG files of many sizes, from smaller than what is shown of them to much larger."""
    sizes = [(40, 60), (90, 70), (33, 33), (150, 200), (300, 220), (20, 90)]
    return write(
        root,
        {
            f"class{number % classes}/{number:03}.jpg": jpeg(*sizes[number % len(sizes)], seed=number)
            for number in range(count)
        },
    )


# ── files that are damaged, or meant to harm ────────────────────────────────────────────────────────────────────────

ENDINGS = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "ppm", "pgm")
MAGICS = (
    b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01",
    b"\xff\xd8\xff\xc0",
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    b"RIFF\xff\xff\x00\x00WEBPVP8 ",
    b"RIFF\xff\xff\x00\x00WEBPVP8L",
    b"RIFF\xff\xff\x00\x00WEBPVP8X",
    b"BM",
    b"II*\x00\x08\x00\x00\x00",
    b"MM\x00*\x00\x00\x00\x08",
    b"II+\x00\x08\x00\x00\x00",
    b"P3 ",
    b"P6 9 9 255\n",
)
NO_PICTURES = (
    b"<html><body>404</body></html>",
    b"PK\x03\x04" + bytes(90),
    b"\x7fELF" + bytes(90),
    b"GIF89a" + bytes(90),
)


def whole_files() -> list[bytes]:
    """Undamaged small files of every kind, from which hostile ones are made."""
    return [
        jpeg(70, 90),
        jpeg(90, 40, progressive=True, exif=exif(6)),
        jpeg(64, 64, subsampling=0, restart_marker_blocks=2),
        file_of(image(50, 60, "L"), "JPEG"),
        file_of(image(50, 60, "CMYK"), "JPEG"),
        file_of(image(50, 60), "PNG", exif=exif(8)),
        file_of(image(50, 60, "P"), "PNG"),
        file_of(image(50, 60, "I;16"), "PNG"),
        file_of(image(50, 60), "WEBP", exif=exif(3)),
        file_of(image(50, 60, "RGBA"), "WEBP", lossless=True),
        file_of(image(50, 60), "BMP"),
        file_of(image(50, 60, "P"), "BMP"),
        file_of(image(50, 60), "TIFF"),
        file_of(image(50, 60), "TIFF", compression="tiff_lzw", exif=exif(5)),
        file_of(image(50, 60), "TIFF", compression="jpeg"),
        file_of(image(50, 60), "PPM"),
        b"P3 4 4 255\n" + b" ".join(b"%d" % each for each in range(48)),
    ]


def hostile(number: int, seed: int, whole: Sequence[bytes]) -> tuple[str, bytes]:
    """What is wrong with hostile file `number`, and its bytes: the same ones for the same seed."""
    random = Random(f"hostile {seed} {number}")
    make = HARMS[number % len(HARMS)]
    return make.__name__.strip("_"), make(random, random.choice(whole))


def _truncated(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data))]


def _bits_flipped(random: Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(random.randint(1, 64)):
        found[random.randrange(len(found))] ^= 1 << random.randrange(8)
    return bytes(found)


def _bytes_inserted(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + random.randbytes(random.randint(1, 300)) + data[place:]


def _bytes_removed(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + data[place + random.randint(1, 300) :]


def _header_changed(random: Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(random.randint(1, 4)):
        found[random.randrange(min(len(found), 200))] = random.choice([0, 1, 127, 128, 255, random.randrange(256)])
    return bytes(found)


def _spliced(random: Random, data: bytes) -> bytes:
    other = random.choice(whole_files())
    return data[: random.randrange(len(data))] + other[random.randrange(len(other)) :]


def _wrong_content(random: Random, data: bytes) -> bytes:
    return random.choice([data, random.choice(NO_PICTURES), b""])


def _zeros(random: Random, data: bytes) -> bytes:
    place, count = random.randrange(len(data)), random.randint(1, 2000)
    return random.choice([b"", bytes(count), data[:place] + bytes(count) + data[place + count :]])


def _magic_and_random_bytes(random: Random, data: bytes) -> bytes:
    return random.choice(MAGICS) + random.randbytes(random.randint(0, 4000))


def _huge_size(random: Random, data: bytes) -> bytes:
    sides = [random.choice([1, 100, 5000, 8191, 16383, 32768, 65535]) for _ in range(2)]
    return with_size(data, *sides)


def _many_scans(random: Random, data: bytes) -> bytes:
    mode = random.choice(["L", "RGB", "CMYK"])
    data = file_of(image(16, 16, mode), "JPEG", progressive=True)
    last = data[data.rfind(b"\xff\xda") : -2]
    return with_size(data[:-2] + last * random.choice([5, 80, 120, 3000]) + data[-2:], *random.choices([16, 900], k=2))


def _giant_exif(random: Random, data: bytes) -> bytes:
    """Tag lists that say they are longer than they are, that lead back to themselves, or that come by the hundred."""
    block = bytearray(exif(random.randint(0, 9), random.choice(sorted(ORDERS)), random.randint(0, 5000)))
    if random.random() < 0.5:
        block[14:16] = b"\xff\xff"
    if random.random() < 0.3:
        block[10:14] = random.randbytes(4)
    blocks = [segment(0xE1, bytes(block))] * random.choice([1, 1, 3, 300])
    if data[:2] == b"\xff\xd8":
        return with_segments(data, blocks)
    return file_of(image(30, 20), random.choice(["PNG", "WEBP"]), exif=bytes(block))


def _compressed_to_nothing(random: Random, data: bytes) -> bytes:
    """A few kilobytes that decode to many pixels, or say that they do."""
    side = random.choice([3000, 6000])
    if random.random() < 0.5:
        header = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 0, 0, 0, 54 + 1024, 40, side, side, 1, 8, 1, 0, 0, 0, 0, 0)
        return header + bytes(1024) + b"\x00\x02\xff\xff" * random.choice([1, 300])
    content = zlib.compress(bytes(random.choice([1, side, side * (3 * side + 1)])))
    size = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return MAGICS[2][:8] + chunk(b"IHDR", size) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def _giant_text(random: Random, data: bytes) -> bytes:
    text = chunk(b"zTXt", b"name\0\0" + zlib.compress(bytes(1 << random.choice([10, 20, 24]))))
    png = file_of(image(20, 20), "PNG")
    return png[:33] + text * random.choice([1, 80]) + png[33:]


HARMS = (
    _truncated,
    _bits_flipped,
    _bytes_inserted,
    _bytes_removed,
    _header_changed,
    _spliced,
    _wrong_content,
    _zeros,
    _magic_and_random_bytes,
    _huge_size,
    _many_scans,
    _giant_exif,
    _truncated,
    _bits_flipped,
    _header_changed,
    _giant_text,
    _compressed_to_nothing,
)


def chunk(kind: bytes, content: bytes) -> bytes:
    """Of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def with_size(data: bytes, height: int, width: int) -> bytes:
    """The same file, its header naming another size."""
    found = bytearray(data)
    if data[:2] == b"\xff\xd8":
        frame = next((place for kind in b"\xc0\xc1\xc2" if (place := data.find(bytes([0xFF, kind]))) > 0), -1)
        if frame > 0:
            found[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    elif data[:4] == b"\x89PNG":
        found[8:33] = chunk(b"IHDR", struct.pack(">II", width, height) + data[24:29])
    elif data[:2] == b"BM":
        found[18:26] = struct.pack("<ii", width, height)
    elif data[:2] in (b"II", b"MM"):
        number = "<" if data[:2] == b"II" else ">"
        (directory,) = struct.unpack_from(number + "I", data, 4)
        for entry in range(directory + 2, directory + 26, 12):
            tag, kind = struct.unpack_from(number + "HH", data, entry)
            if tag in (256, 257):
                side = width if tag == 256 else height
                struct.pack_into(number + ("H" if kind == 3 else "I"), found, entry + 8, side)
    elif data[:4] == b"RIFF" and data[12:16] == b"VP8 ":
        found[26:30] = struct.pack("<HH", width & 0x3FFF, height & 0x3FFF)
    elif data[:4] == b"RIFF" and data[12:16] == b"VP8L":
        found[21:25] = struct.pack("<I", (width - 1 & 0x3FFF) | (height - 1 & 0x3FFF) << 14 | data[24] >> 4 << 28)
    elif data[:4] == b"RIFF" and data[12:16] == b"VP8X":
        found[24:30] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif data[:1] == b"P":
        found = bytearray(data[:2] + b" %d %d 255\n" % (width, height) + data[13:])
    return bytes(found)
