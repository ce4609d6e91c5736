"""What a technique changes in a user's source. All are plain torch: nothing that is written imports hasten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hasten.doctor import edits as doctor
from hasten.errors import PlanError
from hasten.facts.scripts.script_places import SourceCall

LOADER_ARGUMENTS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn")
"""Of torch's DataLoader, by position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetKeywords:
    """Named arguments of a call: name -> its source. Those that it has already are replaced. without: names that are
    removed; a new argument takes the place of a removed one. positions: names of arguments by position."""

    call: SourceCall
    keywords: Mapping[str, str]
    without: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SetDefaults:
    """Of the argument parser whose method a call is, before that call: name -> source."""

    call: SourceCall
    keywords: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaceCall:
    """By an expression."""

    call: SourceCall
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AddLines:
    """Statements before or after the statement that a call is in."""

    call: SourceCall
    lines: tuple[str, ...]
    where: Literal["before", "after"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AddDefinition:
    """A function before the class or function that a call is in, at the top of the file's structure."""

    call: SourceCall
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AddImport:
    """`import MODULE`, or of some names `from MODULE import NAMES`, at the top of a file that has it not yet."""

    file: str
    module: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AddToHeader:
    """Statements behind the first imports of a file."""

    file: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapStatements:
    """`with CONTEXT:` around the statements from the one with the first call up to the one before the last call."""

    first: SourceCall
    last: SourceCall
    context: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapLoop:
    """`with CONTEXT:` around a loop, or around the statement of a comprehension."""

    call: SourceCall
    context: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Decorate:
    """The function that a place is in."""

    call: SourceCall
    decorator: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapArguments:
    """Arguments of a call, by position, each followed by a method: `images` -> `images.half()`."""

    call: SourceCall
    positions: tuple[int, ...]
    method: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """What a rule of the doctor does about a finding. call: the place of the finding. edits: at nodes of the source, as
    the rule has found them in it."""

    call: SourceCall
    edits: tuple[doctor.Edit, ...]


def number_text(value: object) -> str:
    """A number or a truth value as Python writes it: a plan may hold any text, and none of it becomes code."""
    if not isinstance(value, bool | int | float):
        raise PlanError(f"is {value!r}", fix="write a number, true or false")
    return repr(value)


Edit = (
    SetKeywords
    | SetDefaults
    | ReplaceCall
    | AddLines
    | AddDefinition
    | AddImport
    | AddToHeader
    | WrapStatements
    | WrapLoop
    | Decorate
    | WrapArguments
    | Fix
)


def file_of(edit: Edit) -> str:
    match edit:
        case AddToHeader(file=file) | AddImport(file=file):
            return file
        case WrapStatements(first=place):
            return place.file
        case _:
            return edit.call.file
