"""The plan so far: what has joined it surely, and what is to be asked again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hasten.facts.choice import Choice
from hasten.tune.search.candidates import joined, with_choice

MOST_DOUBTFUL = 2  # of these, every plan without some of them has an arm of its own in the last heat


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """What came to the plan. sure: the choices that were faster, in the order they joined; doubtful: those that only
    looked faster, to be asked again on top of them."""

    sure: tuple[Choice, ...] = ()
    doubtful: tuple[Choice, ...] = ()

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (*self.sure, *self.doubtful)

    def with_winners(self, winners: Sequence[Choice]) -> Joined:
        """A doubtful choice gives way to a winner that it does not go with."""
        sure = joined(self.sure, winners)
        kept = [choice for choice in self.doubtful if choice in joined(sure, [choice])]
        return Joined(sure=sure, doubtful=tuple(each for each in kept if not _has_technique(sure, each)))

    def with_doubtful(
        self, more: Sequence[Choice], has_time: Callable[[tuple[Choice, ...]], bool] = lambda doubtful: True
    ) -> Joined:
        """has_time: for these doubtful ones."""
        doubtful = self.doubtful
        for choice in more:
            before, whole = (*self.sure, *doubtful), (*doubtful, choice)
            legal = with_choice(before, choice) is not None and not _has_technique(before, choice)
            if legal and len(whole) <= MOST_DOUBTFUL and has_time(whole):
                doubtful = whole
        return Joined(sure=self.sure, doubtful=doubtful)


def _has_technique(choices: Sequence[Choice], one: Choice) -> bool:
    return any(one.technique == choice.technique for choice in choices)
