"""Why something could not be looked at, in one line for a person."""

from __future__ import annotations


def reason_of(error: Exception) -> str:
    """The first line of its message that says anything, without what a terminal would obey; else what kind it is."""
    lines = ("".join(each if each.isprintable() else " " for each in line) for line in str(error).splitlines())
    return next(filter(None, map(str.strip, lines)), type(error).__name__)
