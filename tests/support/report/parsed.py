"""A page as a parser of HTML reads it, and what no page of ours may have."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from unicodedata import category

TEXT_ELEMENTS = "main header section footer h1 h2 p div span strong code ul li dl dt dd figure figcaption"
TABLE_ELEMENTS = "table caption thead tbody tr th td"
SVG_ELEMENTS = "svg g title desc rect line path circle text"
ELEMENTS = {*TEXT_ELEMENTS.split(), *TABLE_ELEMENTS.split(), *SVG_ELEMENTS.split()}
SVG_ATTRIBUTES = "x y x1 x2 y1 y2 cx cy r dy d width height viewbox preserveaspectratio"
NAMES = "id aria-labelledby aria-hidden data-label"
ATTRIBUTES = {"class", "role", "scope", "tabindex", *NAMES.split(), *SVG_ATTRIBUTES.split()}
OF_THE_SHELL = {"html", "head", "meta", "title", "style", "body"}
OWN_ATTRIBUTES = {"meta": {"charset", "http-equiv", "content", "name"}, "html": {"lang"}}
PLACES = {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "dx", "dy", "d", "viewBox"}
PLACE = re.compile(r"-?\d+(\.\d+)?(%|em)?|[MLZ0-9. ]+")


@dataclass
class Page(HTMLParser):
    """tags: (name, attributes) of every element in order; text: all that a reader sees, titles included."""

    source: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    style: str = ""
    open: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.source)
        self.close()
        self.faults += [f"<{name}> is never closed" for name in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.faults.append(f"<{tag}/> closes itself")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.faults.append("there is a comment")

    def unknown_decl(self, data: str) -> None:
        self.faults.append("there is a declaration")

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag, tuple(attributes)) for tag, attributes in self.tags]


def faults(source: str) -> list[str]:
    """What makes the page unsafe or broken; empty for one that is well."""
    page = Page(source)
    found = list(page.faults)
    for tag, attributes in page.tags:
        names = OWN_ATTRIBUTES.get(tag, ATTRIBUTES)
        if tag not in ELEMENTS | OF_THE_SHELL:
            found.append(f"<{tag}> is no element of ours")
        found += [f"<{tag} {name}> is no attribute of ours" for name in attributes if name not in names]
        for name, value in attributes.items():
            if tag != "meta" and name in PLACES and not PLACE.fullmatch(value or ""):
                found.append(f"<{tag} {name}={value!r}> is no place")
            if name == "class" and not re.fullmatch(r"[a-z_ -]*", value or ""):
                found.append(f"<{tag} class={value!r}>")
        if tag in ("circle", "rect", "line") and not _inside(attributes):
            found.append(f"<{tag} {attributes}> lies outside its picture")
    for once in OF_THE_SHELL - {"meta", "title"}:
        found += [f"<{once}> is there {n} times" for n in [sum(tag == once for tag, _ in page.tags)] if n != 1]
    obeyed = {each for each in source if each != "\n" and category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    found += [f"U+{ord(each):04X} in the page" for each in obeyed]
    return found


def _inside(attributes: dict[str, str | None]) -> bool:
    places = [
        float((attributes.get(name) or "0%").rstrip("%"))
        for name in ("x", "cx", "x1", "x2", "width")
        if str(attributes.get(name, "0%")).endswith("%")
    ]
    return all(-0.01 <= place <= 100.01 for place in places)
