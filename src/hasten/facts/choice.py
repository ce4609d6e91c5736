"""A technique's setting, and what it preserves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import cast

Scalar = str | bool | int | float
Value = Scalar | list[Scalar] | list[str] | list[int] | list[float]


class Preserves(IntEnum):
    """What a choice leaves unchanged, strictest first. It is a claim until it is confirmed on the job."""

    BITS = 0
    ROUNDING = 1
    STATISTICS = 2
    TRAINING = 3

    @property
    def words(self) -> str:
        return _WORDS[self]

    @classmethod
    def from_words(cls, words: str) -> Preserves:
        """The class with these words. Raises ValueError."""
        for member, text in _WORDS.items():
            if text == words:
                return member
        raise ValueError(f'"{words}" is not a valid value;  write one of: {", ".join(_WORDS.values())}')


_WORDS = {
    Preserves.BITS: "bit-exact",
    Preserves.ROUNDING: "equal up to rounding",
    Preserves.STATISTICS: "same statistics",
    Preserves.TRAINING: "changes training",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One technique with its value, and options where the value alone does not say everything.

    preserves: what the choice claims to leave unchanged. For None, a run takes the technique's own claim where the
        technique would propose this choice, and TRAINING for any other.
    """

    technique: str
    value: Value
    preserves: Preserves | None = None
    options: Mapping[str, Value] = field(default_factory=dict[str, Value])

    def __str__(self) -> str:
        """As the plan writes it: precision = bf16, with TOML's own words for true and false."""
        options = ", ".join(f"{key} = {_text(value)}" for key, value in self.options.items())
        return f"{self.technique} = {_text(self.value)}" + (f" ({options})" if options else "")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_text, cast('list[object]', value)))}]"
    return str(value)
