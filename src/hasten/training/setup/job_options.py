"""What a command gives a job beside its name: `--set NAME=VALUE`, and sys.argv behind `--`. Loads no torch."""

from __future__ import annotations

import ast
import inspect
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from hasten.errors import Misconfigured, UserCodeFailed
from hasten.facts.formatting import did_you_mean, shortened
from hasten.facts.job import describe
from hasten.users_code import is_users_file, reason_of, short

_FLOAT = (float, "float")  # annotations
_LONGEST = 60  # characters of a value in an error
_READ: Mapping[type, tuple[str, Callable[[str], Any]]] = {
    bool: ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
    int: ("a whole number", int),
    float: ("a number", float),
    str: ("text", str),
    type(None): ("a value", lambda text: _literal_or_text(text)),
    list: ("a list, such as [1, 2]", lambda text: [*_items(text)]),
    tuple: ("a list, such as [1, 2]", lambda text: (*_items(text),)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOptions:
    """
    settings: name -> text of the value, for arguments of the job's function that have defaults.
    arguments: sys.argv[1:] from when the job's file is loaded.
    """

    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    arguments: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The end of a command that gives the same."""
        settings = [word for name, text in self.settings.items() for word in ("--set", f"{name}={text}")]
        return [*settings, *(["--", *self.arguments] if self.arguments else [])]

    def over(self, before: JobOptions) -> JobOptions:
        """Those of an earlier command, with these in their place."""
        settings = {**before.settings, **self.settings}
        return JobOptions(settings=settings, arguments=self.arguments or before.arguments)


NONE_GIVEN = JobOptions()


def options_of(given: Sequence[str], arguments: Sequence[str] = ()) -> JobOptions:
    """given: NAME=VALUE, of each --set. Raises Misconfigured."""
    pairs = [each.partition("=") for each in given]
    for name, equals, _ in pairs:
        if not (equals and name.isidentifier()):
            what = f"is {shortened(name + equals, _LONGEST)!r}"
            raise Misconfigured(what, where="--set", fix="write NAME=VALUE, such as --set lr=0.1")
    settings = dict(sorted((name, text) for name, _, text in pairs))
    return JobOptions(settings=settings, arguments=tuple(arguments))


def ended_while_loaded(error: BaseException, job: str) -> Misconfigured | UserCodeFailed | None:
    """The error for SystemExit by argparse, or by a file while it is loaded, as of other parsers; else None."""
    import argparse

    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users_file(frame.filename)]
    parsed = any(frame.filename == argparse.__file__ for frame in frames)
    if not isinstance(error, SystemExit) or not (parsed or (own and own[0].name == "<module>")):
        return None
    given = shortened(shlex.join(sys.argv[1:]), _LONGEST) or "no arguments"
    fix = f"{'change' if sys.argv[1:] else 'give'} its options behind --: hasten train {job} -- --lr 0.1"
    if not error.code and not {"-h", "--help"}.isdisjoint(sys.argv):
        fix = "leave out --help, which the file has answered"
    if parsed:
        what = f"it parses sys.argv when it is loaded, and argparse ended with {error.code} on: {given}"
        if isinstance(error.__context__, argparse.ArgumentError):
            what += f" ({error.__context__})"
        return Misconfigured(what, where=job, fix=fix)
    what = f"{reason_of(error)}, which ended the file while it was loaded, with sys.argv[1:]: {given}"
    guard = 'put this line under `if __name__ == "__main__":`'
    where = f"{short(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name}"
    return UserCodeFailed(what, where=where, fix=f"{guard}, or {fix}" if error.code else guard)


def keywords_for(function: Callable[..., Any], settings: Mapping[str, str], job: str) -> dict[str, Any]:
    """The values of --set, each read by the type of the argument's default. job: its name. Raises Misconfigured."""
    defaults = {
        # Of `dropout: float = 0`, a number.
        name: 0.0 if type(parameter.default) is int and parameter.annotation in _FLOAT else parameter.default
        for name, parameter in (inspect.signature(function).parameters if settings else {}).items()
        if parameter.default is not parameter.empty and parameter.kind is not parameter.POSITIONAL_ONLY
    }
    for name in settings:
        if name not in defaults:
            what = f'the function has no argument "{name}" with a default'
            fix = did_you_mean(name, defaults) if defaults else f"give it one: def {job.rpartition(':')[2]}({name}=…)"
            raise Misconfigured(what, where=f"{job}, --set", fix=fix)
    return {name: _value(name, text, defaults[name]) for name, text in settings.items()}


def _value(name: str, text: str, default: object) -> object:
    where = f"--set {name}={shortened(text, _LONGEST)}"
    kind: Any = type(default)
    if isinstance(default, PurePath):
        return kind(text)
    if kind not in _READ:
        what = f"the default is {describe(default)}"
        fix = "give the argument a default that is a number, text, true or false, None, a list or a path"
        raise Misconfigured(what, where=where, fix=fix)
    wanted, read = _READ[kind]
    try:
        return read(text)
    except (ValueError, KeyError, SyntaxError, TypeError, MemoryError, RecursionError):
        fix = f"write {wanted}, as the default is: --set {name}={shlex.quote(str(default))}"
        raise Misconfigured(f"the value is not {wanted}", where=where, fix=fix) from None


def _items(text: str) -> Sequence[object]:
    found = ast.literal_eval(text)
    if not isinstance(found, list | tuple):
        raise ValueError
    return found


def _literal_or_text(text: str) -> object:
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
