"""A name that nobody knows, and the one that was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The fix for an unknown name: the nearest known one, or all of them when none is near."""
    names = list(known)
    near = get_close_matches(name.lower(), names, n=1)
    if near:
        return f'did you mean "{near[0]}"?'
    return f"write one of: {', '.join(names)}" if names else "nothing can be named here"
