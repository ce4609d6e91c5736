"""Replaces a function of torch's for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
    """by: called with the original, and then with what the original is called with."""
    original = getattr(owner, name)

    @wraps(original)
    def instead(*args: Any, **named: Any) -> Any:
        return by(original, *args, **named)

    vars(instead)["__prepare_scriptable__"] = lambda: original  # what torch.jit.script compiles in its place
    setattr(owner, name, instead)
    try:
        yield
    finally:
        setattr(owner, name, original)
