"""Incomplete libraries in the folder of compiled code, of a run that was killed while it linked: torch would load them,
because it only checks that the files exist."""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from pathlib import Path

from hasten.checkpoint.files import remove_file

_LINKING_SECONDS = 10  # a file that was not written to for so long is not being linked by another run
_HEADER = 64  # bytes


def remove_unlinked(folder: Path) -> None:
    """Remove incomplete libraries. Raises StorageFailed for one that cannot be removed."""
    for each in folder.rglob("*.so"):
        with suppress(FileNotFoundError):  # another process has removed it
            about = each.stat()
            with each.open("rb") as file:
                unlinked = is_unlinked(file.read(_HEADER), about.st_size)
            if unlinked and time.time() - about.st_mtime > _LINKING_SECONDS:
                remove_file(each)


def is_unlinked(header: bytes, size: int) -> bool:
    """Whether the library with this header is shorter than the header says. False for a file other than 64-bit ELF,
    unless it is empty. Source: the ELF-64 object file format, 1998; linkers write the section table last."""
    if not any(header):
        return True
    if len(header) < _HEADER or not header.startswith(b"\x7fELF\x02\x01"):
        return False
    (begin,), (length, number) = struct.unpack_from("<Q", header, 40), struct.unpack_from("<HH", header, 58)
    return begin + length * number > size
