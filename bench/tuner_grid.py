"""The oracle of the tuner's bench: a grid of what a search may try, measured whatever it promises.

A technique gives none of its values or one of its first few. The product of all techniques is raced: each
configuration beside the plain job for three short windows, the fastest ones again for twelve. Nothing here asks the
tuner's own bounds and orders, since they are what is judged. The product of many techniques has no end, so it is taken
of those whose best value alone moved the job furthest, one technique after the other while it stays within a number
that was fixed before; what is left out was measured alone, and is named.

Random search is played back from the same races: it draws configurations in a random order, pays for each what its race
took, and reports the best that it has seen when the tuner's own seconds are over.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median
from typing import Any

from hasten.facts.choice import Choice, Preserves
from hasten.measure.paired_timing import LEAST_PAIRS
from hasten.techniques.combinations import conflicts
from hasten.tuning.search.candidates import MEMORY_ALONE, ONE_OF, plan_of, same
from hasten.tuning.search.comparison import Compared, ComparisonSettings, Entry, compare_arms
from hasten.tuning.search.objective import paired_totals
from hasten.tuning.search.plan_profile import PlanProfile
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.survey import as_table, choice_of

Configuration = tuple[Choice, ...]
Tell = Callable[[str], None]

PLAIN = "plain"
VALUES = 3  # of one technique
WINDOW_SECONDS = 0.25
ROUNDS, FINAL_ROUNDS = 3, LEAST_PAIRS
FINALISTS = 8
IN_A_HEAT = 6
NEEDS: Mapping[str, str] = {"prefetch": "loader_workers", "persistent_workers": "loader_workers"}
NEVER: Mapping[str, str] = {"compile": "is left out of the grid, as one trial takes longer than all others"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Raced:
    """One configuration beside the plain job. ratio: plain's seconds to finish ÷ its own, the middle of its pairs; 0
    where it failed. seconds: what racing it took, its share of the plain job's windows included."""

    configuration: Configuration
    ratio: float
    seconds: float
    failed: str | None = None

    def as_table(self) -> dict[str, Any]:
        return asdict(self) | {"configuration": [as_table(choice) for choice in self.configuration]}


def raced_of(table: Mapping[str, Any]) -> Raced:
    return Raced(**{**table, "configuration": configuration_of(table["configuration"])})


def configuration_of(tables: Iterable[dict[str, Any]]) -> Configuration:
    return tuple(map(choice_of, tables))


def said(configuration: Configuration) -> str:
    return ", ".join(map(str, configuration)) or PLAIN


def same_configuration(one: Configuration, other: Configuration) -> bool:
    return len(one) == len(other) and all(any(same(a, b) for b in other) for a in one)


# ── which configurations there are ──────────────────────────────────────────────────────────────────────────────────


def allowed_values(
    proposed: Iterable[Choice], ceiling: Preserves, harmful: Sequence[Choice]
) -> tuple[list[list[Choice]], list[str]]:
    """The values of each technique that a plan may hold, and in words what is left out.

    harmful: what has failed the proof of its own claim on this job, which no plan may hold however fast it is.
    """
    values, left, proposed = dict[str, list[Choice]](), list[str](), list(proposed)
    names = {choice.technique for choice in proposed}
    for choice in proposed:
        if (reason := _refused(choice, names, ceiling, harmful)) is None:
            values.setdefault(choice.technique, []).append(choice)
        else:
            left.append(f"{choice}: {reason}")
    for many in values.values():
        left += [f"{choice}: beyond the first {VALUES} values" for choice in many[VALUES:]]
    return [many[:VALUES] for many in values.values()], left


def _refused(choice: Choice, names: set[str], ceiling: Preserves, harmful: Sequence[Choice]) -> str | None:
    if choice.technique in NEVER:
        return NEVER[choice.technique]
    if choice.preserves is None or choice.preserves > ceiling:
        return "changes more than a search is allowed to"
    if choice.technique in MEMORY_ALONE:
        return "buys memory with time"
    if ONE_OF.get(choice.technique) in names:
        return f"says the same as {ONE_OF[choice.technique]}"
    if any(same(choice, other) for other in harmful):
        return "failed the proof of its claim on this job"
    return None


def alone(values: Sequence[Sequence[Choice]]) -> list[Configuration]:
    """Each value by itself; one that needs another technique, together with the first value of that."""
    first = {many[0].technique: many[0] for many in values}
    found = list[Configuration]()
    for choice in (choice for many in values for choice in many):
        needed = NEEDS.get(choice.technique)
        if needed is None or needed in first:
            found.append((choice,) if needed is None else (first[needed], choice))
    return [configuration for configuration in found if is_legal(configuration)]


def is_legal(configuration: Configuration) -> bool:
    names = {choice.technique for choice in configuration}
    return not conflicts(configuration) and all(NEEDS.get(name) in (None, *names) for name in names)


def grid(
    values: Sequence[Sequence[Choice]], singles: Sequence[Raced], most: int
) -> tuple[list[Configuration], list[str]]:
    """The product of the techniques whose values alone moved the job furthest, of at most so many configurations; and
    the names of the techniques that it has no room for."""
    inside, found, left = list[Sequence[Choice]](), list[Configuration](), list[str]()
    for many in sorted(values, key=lambda many: -_reach(many[0].technique, singles)):
        larger = legal_product([*inside, many])
        if len(larger) <= most:
            inside, found = [*inside, many], larger
        else:
            left.append(many[0].technique)
    return found, left


def legal_product(values: Sequence[Sequence[Choice]]) -> list[Configuration]:
    """Every way to take none or one of each, but for taking none of all."""
    chosen = product(*((None, *many) for many in values))
    found = [tuple(choice for choice in each if choice is not None) for each in chosen]
    return [configuration for configuration in found if configuration and is_legal(configuration)]


def _reach(technique: str, singles: Sequence[Raced]) -> float:
    """By how much the best value of a technique was faster, as a logarithm; a technique that only lost comes last."""
    gains = [_gain(raced, singles) for raced in singles if raced.configuration[-1].technique == technique]
    return max(gains, default=-math.inf)


def _gain(raced: Raced, singles: Sequence[Raced]) -> float:
    """What the last choice of a configuration adds to those before it."""
    before = next(
        (each.ratio for each in singles if same_configuration(each.configuration, raced.configuration[:-1])), 1.0
    )
    return math.log(raced.ratio / before) if raced.ratio > 0 and before > 0 else -math.inf


# ── the races ───────────────────────────────────────────────────────────────────────────────────────────────────────


def race(
    arms: Arms, look: PlanProfile, configurations: Sequence[Configuration], rounds: int, tell: Tell
) -> tuple[list[Raced], list[dict[str, Any]]]:
    """Each beside the plain job, several in a heat; and every window as it ran."""
    found, windows = list[Raced](), list[dict[str, Any]]()
    evaluations = min(look.evaluations_at_the_end, rounds)
    pace = ComparisonSettings(steps=look.steps_in(WINDOW_SECONDS), repeats=rounds, evaluations=evaluations, checks=())
    for begin in range(0, len(configurations), IN_A_HEAT):
        some = {said(each): each for each in configurations[begin : begin + IN_A_HEAT]}
        entries = [Entry(name=name, plan=plan_of(each), stays=True) for name, each in some.items()]
        started = time.monotonic()
        outcome = compare_arms(arms, Entry(name=PLAIN, plan=plan_of([])), entries, pace, look.length, lambda *_: None)
        share = (time.monotonic() - started) / len(some)
        found += [_raced(name, each, outcome, look, share) for name, each in some.items()]
        windows += windows_of(outcome, heat=begin // IN_A_HEAT)
        tell(f"{len(found)} of {len(configurations)} configurations, {rounds} windows each")
    return found, windows


def _raced(name: str, configuration: Configuration, outcome: Compared, look: PlanProfile, seconds: float) -> Raced:
    if name in outcome.failed:
        failure = outcome.failed[name]
        return Raced(configuration=configuration, ratio=0.0, seconds=seconds, failed=failure.reason)
    plain, planned = paired_totals(outcome.base, outcome.measured[name], look.length)
    ratio = median(before.seconds / after.seconds for before, after in zip(plain, planned, strict=True))
    return Raced(configuration=configuration, ratio=ratio, seconds=seconds)


def windows_of(outcome: Compared, heat: int = 0) -> list[dict[str, Any]]:
    """Every window of a heat, and what its arms cost besides."""
    return [
        {
            "heat": heat,
            "arm": seen.windows[0].arm,
            "steps": seen.windows[0].steps,
            "seconds": [window.seconds for window in seen.windows],
            "one_off": seen.one_off,
            "turns": list(seen.turns),
            "evaluations": list(seen.evaluations),
        }
        for seen in (outcome.base, *outcome.measured.values())
    ]


def best(raced: Iterable[Raced]) -> Configuration:
    """The fastest; the plain job where none was faster than it."""
    fastest = max(raced, key=lambda each: each.ratio, default=None)
    return () if fastest is None or fastest.ratio <= 1 else fastest.configuration


def fastest(raced: Sequence[Raced], many: int) -> list[Configuration]:
    """So many, no configuration twice."""
    found = list[Configuration]()
    for each in sorted(raced, key=lambda each: -each.ratio):
        if each.ratio > 0 and not any(same_configuration(each.configuration, other) for other in found):
            found.append(each.configuration)
    return found[:many]


def random_search(raced: Sequence[Raced], seconds: float, seed: int) -> tuple[Configuration, int]:
    """What random search over the same grid reports after so many seconds, and how many configurations it has seen."""
    order = random.Random(seed).sample(raced, len(raced))
    seen, spent = list[Raced](), 0.0
    for each in order:
        spent += each.seconds
        if spent > seconds and seen:
            break
        seen.append(each)
    return best(seen), len(seen)
