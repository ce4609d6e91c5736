"""Refuses a script that trains in processes which it starts itself: only what its own process does is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from types import CodeType, FunctionType
from typing import Any

from hasten.errors import Misconfigured
from hasten.scripts.patching import replaced
from hasten.scripts.running.process_groups import LAUNCH
from hasten.users_code import is_users_file

_FOREVER = ExitStack()


def refuse_training_elsewhere() -> None:
    """For the rest of this process."""
    _FOREVER.enter_context(replaced(BaseProcess, "__init__", _made))


def _made(
    original: Callable[..., None],
    process: BaseProcess,
    group: None = None,
    target: Any = None,
    *args: Any,
    **named: Any,
) -> None:
    if isinstance(target, FunctionType) and trains(target):
        what = f"trains by {target.__qualname__}() in processes that it starts itself, which are not timed"
        raise Misconfigured(what, fix=f"let it train in one process; where ranks exchange gradients, {LAUNCH}")
    original(process, group, target, *args, **named)


def trains(function: FunctionType) -> bool:
    """Whether it, or what it calls of the user's, has a call of backward(). Of a class that it names, it calls the
    methods that it names, and those that Python calls."""
    known, names, methods, left = set[CodeType](), set[str](), dict[FunctionType, str](), [function]
    while left:
        called = left.pop()
        if called.__code__ in known or not is_users_file(called.__code__.co_filename):
            continue
        known.add(called.__code__)
        for code in _within(called.__code__):
            if "backward" in code.co_names:
                return True
            names.update(code.co_names)
            for value in map(called.__globals__.get, code.co_names):
                if isinstance(value, FunctionType):
                    left.append(value)
                elif isinstance(value, type):
                    methods |= {each: name for name, each in vars(value).items() if isinstance(each, FunctionType)}
        left += [each for each, name in methods.items() if name in names or name.startswith("__")]
    return False


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _within(each)
