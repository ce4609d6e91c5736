"""When a run is killed: drawn from a seed before anything is killed, in shares of what an undisturbed run took.

A process spends most of its time on what cannot fail: it loads libraries, and it computes. So instants are drawn by
phase, and the two phases that touch the disk are hit as often as the two that do not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """Of a process that trains, in order; saving begins again and again."""

    STARTING = "while its process started"
    GOING_ON = "before its first step"
    TRAINING = "while it trained"
    SAVING = "while it saved"


ADVANCING = (Phase.TRAINING, Phase.SAVING)  # those in which the run advances
_TURNS = (
    *(Phase.TRAINING, Phase.GOING_ON, Phase.SAVING, Phase.TRAINING, Phase.STARTING),
    *(Phase.GOING_ON, Phase.TRAINING, Phase.SAVING, Phase.GOING_ON, Phase.TRAINING),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Instant:
    """share: of the phase, 0 to 1; where the phase is saving, of the training before the save as well."""

    phase: Phase
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTimes:
    """Of an undisturbed run: its process until its libraries were loaded, from there until the first step, one step
    with its share of everything else, and one save."""

    starting_seconds: float
    resuming_seconds: float
    step_seconds: float
    save_seconds: float


def draw(kills: int, seed: int) -> list[Instant]:
    """As many instants, in the order in which they are used. The first one lets the run come to its first steps."""
    chance = random.Random(seed)
    first, *later = (_TURNS[number % len(_TURNS)] for number in range(kills))
    chance.shuffle(later)
    return [Instant(phase=phase, share=chance.random()) for phase in [first, *later]]


def missed(instant: Instant) -> Instant:
    """Another one for an instant that the run did not come to, because it ended before."""
    return Instant(phase=Phase.TRAINING, share=instant.share / 2)


def training_seconds(times: RunTimes, steps_left: int, coming: Sequence[Instant]) -> float:
    """How long to let a process train: together the kills that are still coming use up the run, whichever shares they
    have. coming: this one and those after it."""
    advancing = sum(each.phase in ADVANCING for each in coming)
    return 2 * coming[0].share * steps_left * times.step_seconds / (advancing + 1)
