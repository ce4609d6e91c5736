"""What every page has: its head with the policy and the style sheet, its sections and tables, its foot.

The policy lets nothing load and nothing run. Even the style sheet is only let in by its digest, so that a style that
came from anywhere else would have no effect.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

from hasten.report.page.markup import Markup, Part, element, escaped, joined

Notes = Sequence[str]
MOST_COLUMNS = 5  # that fit side by side on a telephone


def document(title: str, header: Markup, sections: Iterable[Markup | None]) -> str:
    """The whole page, complete in one file. Sections that are None have nothing to tell, and are left out."""
    footer = element(
        "footer",
        element(
            "p", f"Written by hasten {version('hasten')}. This page is one file: it loads nothing and runs nothing."
        ),
    )
    body = element("div", header, element("main", *sections), footer, class_="page")
    style = _style()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(style)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{escaped(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body.html}\n</body>\n</html>\n"
    )


def policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def section(title: str, *parts: Part) -> Markup:
    """A part of the page under a heading; parts of None are left out."""
    return element("section", element("h2", title), *parts)


def lead(*parts: Part) -> Markup:
    return element("p", *parts, class_="lead")


def notes(texts: Notes) -> Markup | None:
    """What the reader must know before believing what stands below."""
    return element("div", *(element("p", text) for text in texts), class_="notes", role="note") if texts else None


def table(caption: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Part]], kind: str = "") -> Markup:
    """A table whose first column names the rows. Where it has pictures or many columns, a narrow screen makes a block
    of each row, in which each cell says its column's name; the roles keep it a table for who hears it.

    columns: (name, class); a picture's has no name. rows: one cell a column; None is an empty one.
    """
    wide = len(columns) > MOST_COLUMNS or any("drawn" in look for _, look in columns)
    heads = (element("th", name, scope="col", role="columnheader", class_=look or None) for name, look in columns)
    return element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *heads, role="row"), role="rowgroup"),
        element("tbody", *(_row(columns, row) for row in rows), role="rowgroup"),
        role="table",
        class_=" ".join(filter(None, [kind, "cards" if wide else ""])) or None,
    )


def pairs_of(items: Iterable[tuple[str, Part]]) -> Markup:
    """Names with what they stand for."""
    rows = (element("div", element("dt", name), element("dd", value)) for name, value in items if value)
    return element("dl", *rows)


def two_lines(first: Part, second: Part) -> Markup:
    """A value, and below it what explains it, in small letters."""
    return joined([element("span", first, class_="value"), element("span", second, class_="small") if second else None])


def _row(columns: Sequence[tuple[str, str]], row: Sequence[Part]) -> Markup:
    first, *others = zip(columns, row, strict=True)
    cells = [element("th", first[1], scope="row", role="rowheader", class_=first[0][1] or None)]
    for (name, look), cell in others:
        classes = f"{look} empty".strip() if cell in (None, "") else look
        cells.append(element("td", cell, role="cell", class_=classes or None, data_label=name or None))
    return element("tr", *cells, role="row")


@cache
def _style() -> str:
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8")
