"""Shows the arguments that a docstring describes as a list, on the site's page about Python.

Docstrings of hasten describe an argument, or a field, by a line `name: text`, whose further lines are indented.
Markdown would join these lines into one paragraph. A line that does not begin with a name of the function or class
stays text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from griffe import Attribute, Extension, Object

ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*): (?P<text>.+)")


class ArgumentLists(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = with_lists(obj.docstring.value, names_of(obj))


def names_of(documented: Object) -> set[str]:
    """The parameters of a function, and of a class also its attributes."""
    names = {parameter.name.lstrip("*") for parameter in getattr(documented, "parameters", ())}
    return names | {name for name, member in documented.members.items() if isinstance(member, Attribute)}


def with_lists(docstring: str, names: Collection[str]) -> str:
    """The text, each run of lines about these names as a definition list of Markdown."""
    lines: list[str] = []
    within = False  # an entry of a list
    for line in docstring.splitlines():
        entry = ENTRY.fullmatch(line)
        if entry and {*entry["names"].split(", ")} <= {*names}:
            terms = ", ".join(f"`{name}`" for name in entry["names"].split(", "))
            lines += ["", terms, f":   {entry['text']}"]
            within = True
            continue
        if within and line.strip() and not line.startswith(" "):
            lines.append("")  # else Markdown reads the line as a part of the entry
            within = False
        lines.append(line)
    return "\n".join(lines).strip()
