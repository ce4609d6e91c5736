"""Bytes as people read them, on a screen and in an error."""

from __future__ import annotations


def byte_size(size: int) -> str:
    """Three digits at least, in powers of 1024: 512 B, 1.50 KiB, 16.0 GiB."""
    amount, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount >= 999.5 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{three_digits(amount)} {units[0]}"


def three_digits(number: float) -> str:
    """At least so many: 1.50, 12.3, 431, 1024."""
    return f"{number:.{2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0}f}"
