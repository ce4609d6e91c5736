"""Text for people: byte sizes, the nearest known name, and untrusted text that is safe to print. And for programs: what
JSON can hold."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, cast

from hasten.errors import Misconfigured

HIDDEN = "[hidden]"

# How services' keys begin, as their documentation says; and passwords in URLs (RFC 3986, userinfo).
_SECRETS = re.compile(
    r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
    r"|(?<![\w./-])(?:"  # and not inside a name or a path
    r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}"  # GitHub, GitLab
    r"|hf_[A-Za-z0-9]{30,}|sk-(?:proj|ant|svcacct)-[\w-]{20,}|sk-[A-Za-z0-9]{32,}"  # Hugging Face; OpenAI, Anthropic
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{35}|xox[abprs]-[\w-]{10,}"  # Amazon, Google, Slack
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"  # JSON Web Token, RFC 7519
    r")|(?<=\bBearer )[\w.~+/-]{16,}=*"
)


def nearest(name: str, known: Iterable[str]) -> str:
    """The fix for an unknown name that is near a known one; empty for another."""
    near = get_close_matches(name.lower(), list(known), n=1)
    return f'did you mean "{near[0]}"?' if near else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The fix for an unknown name: the nearest known one, or all of them when none is near."""
    names = list(known)
    if near := nearest(name, names):
        return near
    return f"write one of: {', '.join(names)}" if names else "there are no names to choose from"


def printable(text: str) -> str:
    """The text on one line, without secrets and without characters that control a terminal.

    Removed are passwords in URLs, keys of widely used services, control characters (Cc), format characters such as
    those for writing direction (Cf), lone surrogates (Cs) and line and paragraph separators (Zl, Zp). A line break or a
    tab becomes a space.
    """
    spaced = "".join(" " if character in "\n\r\t" else character for character in text)
    shown = "".join(item for item in spaced if unicodedata.category(item) not in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    return _SECRETS.sub(HIDDEN, shown)


def shortened(text: str, most: int) -> str:
    """The text, cut to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def byte_size(size: int) -> str:
    """Three digits at least, in powers of 1024: 512 B, 1.50 KiB, 16.0 GiB."""
    amount, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount >= 999.5 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{three_digits(amount)} {units[0]}"


def three_digits(number: float) -> str:
    """A number with three digits or more: 1.50, 12.3, 431, 1024."""
    return f"{number:.{2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0}f}"


def as_json(value: Any) -> Any:
    """Records as objects, enumerations by their values, paths as text. A number that is not finite is the text "NaN",
    "Infinity" or "-Infinity", from which float(...) gives the number."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key.value if isinstance(key, Enum) else key): as_json(item) for key, item in items}
    if isinstance(value, list | tuple | Set):
        return [as_json(item) for item in cast("Iterable[Any]", value)]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def read_bytes(text: str, option: str) -> int:
    """The bytes in an option's value: 80GB in powers of 1000, 80GiB in powers of 1024. Raises Misconfigured."""
    return _read(text, _UNITS, option, "a size with its unit, such as 80GB or 80GiB")


def read_rate(text: str, option: str) -> int:
    """The operations per second in an option's value: 300T, 1.5P. Raises Misconfigured."""
    return _read(text, _RATES, option, "operations per second, such as 300T")


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
