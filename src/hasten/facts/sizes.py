"""Bytes as people read and write them, on a screen, in an error and in an option."""

from __future__ import annotations

import re

from hasten.errors import Misconfigured


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


def read_bytes(text: str, option: str) -> int:
    """What an option gives: 80GB in powers of 1000, 80GiB in powers of 1024. Raises Misconfigured for anything else."""
    return _read(text, _UNITS, option, "a size with its unit, such as 80GB or 80GiB")


def read_rate(text: str, option: str) -> int:
    """Operations a second that an option gives: 300T, 1.5P. Raises Misconfigured for anything else."""
    return _read(text, _RATES, option, "operations a second, such as 300T")


_UNITS = {"B": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("KMGTP", start=1)
    for unit, base in (("B", 1000), ("iB", 1024))
}
_RATES = {prefix: 1000**power for power, prefix in enumerate("MGTP", start=2)}


def _read(text: str, units: dict[str, int], option: str, wanted: str) -> int:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)", text)
    if found is None or found[2] not in units or not (number := round(float(found[1]) * units[found[2]])):
        raise Misconfigured(f"is {text!r}", where=option, fix=f"write {wanted}")
    return number
