"""HTML that nothing can break out of.

A page is built from elements, never from strings put together. What is a `str` becomes text: escaped, on one line,
without control characters, and cut where nobody would read on. What is `Markup` was made by `element`, which knows a
short list of element and attribute names: no script, no style, no address of any kind can be written with it, whoever
the value came from. The two exceptions, the style sheet and the policy, stand in shell.py and hold only constants.

What was given up: links. A page that can load nothing needs none, and has no address to check.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from hasten.report.display import printable

LONGEST_TEXT = 2000

_ELEMENTS = """
main header section footer h1 h2 p div span strong code ul li dl dt dd figure figcaption br
table caption thead tbody tr th td svg g title desc rect line path circle text
"""
_ATTRIBUTES = """
class role scope x y x1 x2 y1 y2 cx cy r dy d width height viewBox preserveAspectRatio aria-hidden data-label
"""
ELEMENTS, ATTRIBUTES = frozenset(_ELEMENTS.split()), frozenset(_ATTRIBUTES.split())
_EMPTY = frozenset({"br"})


@dataclass(frozen=True, slots=True)
class Markup:
    """HTML. Made by `element` and `joined` alone."""

    html: str


Part = Markup | str | None


def element(name: str, *parts: Part, **attributes: str | int | None) -> Markup:
    """One element. Parts that are text are escaped; None is left out, as an attribute too.

    attributes: an underscore stands for a hyphen, and one at the end keeps Python's own words apart (class_). Raises
    ValueError for a name that is not on the lists.
    """
    if name not in ELEMENTS:
        raise ValueError(f"{name} is no element that a report may have")
    opened = name
    for key, value in attributes.items():
        if value is not None:
            opened += f' {_attribute(key)}="{html.escape(printable(str(value)))}"'
    return Markup(f"<{opened}>" if name in _EMPTY else f"<{opened}>{joined(parts).html}</{name}>")


def joined(parts: Iterable[Part]) -> Markup:
    return Markup("".join(part.html if isinstance(part, Markup) else escaped(part or "") for part in parts))


def escaped(text: str) -> str:
    """The text as it may stand in an element or in a quoted attribute."""
    cut = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
    return html.escape(printable(cut), quote=True)


def _attribute(key: str) -> str:
    name = key.removesuffix("_").replace("_", "-")
    if name not in ATTRIBUTES:
        raise ValueError(f"{name} is no attribute that a report may have")
    return name
