"""Text that others wrote, such as the message of an error in a user's code: fit to be kept, printed and read."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """The text on one line, without characters that a terminal obeys or that change how others are shown.

    Control characters (Cc), format characters such as those for writing direction (Cf), lone surrogates (Cs) and the
    line and paragraph separators (Zl, Zp) are left out; a line break or a tab becomes a space.
    """
    spaced = "".join(" " if character in "\n\r\t" else character for character in text)
    return "".join(item for item in spaced if unicodedata.category(item) not in ("Cc", "Cf", "Cs", "Zl", "Zp"))


def shortened(text: str, most: int) -> str:
    """The text with at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
