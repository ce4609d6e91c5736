"""What a technique changes in a user's source. All are plain torch: nothing that is written imports hasten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hasten.facts.scripts.script_places import SourceCall


@dataclass(frozen=True, kw_only=True, slots=True)
class SetKeywords:
    """Named arguments of a call: name -> its source. Those that it has already are replaced. without: names that are
    removed."""

    call: SourceCall
    keywords: Mapping[str, str]
    without: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AddLines:
    """Statements before or after the statement that a call is in."""

    call: SourceCall
    lines: tuple[str, ...]
    where: Literal["before", "after"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AddToHeader:
    """Statements behind the first imports of a file. They find torch as `torch`."""

    file: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapStatements:
    """`with CONTEXT:` around the statements from the one with the first call up to the one before the last call."""

    first: SourceCall
    last: SourceCall
    context: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapArguments:
    """Arguments of a call, by position, each followed by a method: `images` -> `images.half()`."""

    call: SourceCall
    positions: tuple[int, ...]
    method: str


Edit = SetKeywords | AddLines | AddToHeader | WrapStatements | WrapArguments


def file_of(edit: Edit) -> str:
    match edit:
        case AddToHeader(file=file):
            return file
        case WrapStatements(first=call) | SetKeywords(call=call) | AddLines(call=call) | WrapArguments(call=call):
            return call.file
