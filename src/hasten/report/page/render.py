"""A page as one HTML file that loads nothing and runs nothing.

jinja2 escapes every value that the template prints. Before that, each text is put on one line, loses its control
characters, and is cut where nobody would read on. The template has no script, no link and no address; its policy lets
only the style sheet in, by its digest.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hasten.facts.formatting import printable, shortened
from hasten.regular_files import read_regular
from hasten.report.page.page_model import Page

LONGEST_TEXT = 2000
_TEMPLATES = Path(__file__).with_name("templates")


def html_of(page: Page) -> str:
    style = read_regular(_TEMPLATES / "style.css").decode()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    template = _environment().get_template("report.html")
    return template.render(page=page, style=Markup(style), digest=digest, version=version("hasten"), unbroken=unbroken)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=_as_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def unbroken(text: str) -> str:
    """The text with no line break inside a quantity, such as 6 min 52 s."""
    numbers = re.sub(r"(?<=\d) (?=(?:µs|ms|s|min|h|d|%|[KMGT]iB)(?!\w))", "\u00a0", text)
    return re.sub(r"(\u00a0(?:min|h|d)) (?=\d)", "\\1\u00a0", numbers)


def _as_text(value: Any) -> Any:
    """What a template prints of a value; Markup is what the template itself made."""
    return value if isinstance(value, Markup) else printable(shortened(str(value), LONGEST_TEXT))
