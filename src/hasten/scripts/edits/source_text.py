"""The text of a Python source and its bytes: encoding, byte order mark and line ends stay as they are."""

from __future__ import annotations

from io import BytesIO
from tokenize import detect_encoding

from hasten.errors import PlanError


def text_of(data: bytes) -> str:
    """Raises PlanError where its encoding, which a first line may name, does not fit."""
    try:
        return data.decode(_encoding(data))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise PlanError("is not text in the encoding that it names", fix="save it as UTF-8") from error


def bytes_of(text: str, before: bytes) -> bytes:
    """before: the bytes of the source that was edited."""
    return text.encode(_encoding(before))


def _encoding(data: bytes) -> str:
    encoding, _ = detect_encoding(BytesIO(data).readline)
    return encoding
