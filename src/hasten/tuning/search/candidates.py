"""Which choices a search tries, and why it skips the others. Nothing here runs anything."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan, PlannedChoice
from hasten.techniques.combinations import conflicts
from hasten.tuning.search.bounds import Bound, order
from hasten.tuning.search.objective import WORTH_SEEING

INTERACTIONS: Mapping[str, frozenset[str]] = {
    "batches_by_index": frozenset({"loader_workers"}),
    "cache_decoded_images": frozenset({"loader_workers", "persistent_workers"}),
    "channels_last": frozenset({"precision", "compile"}),
    "compile": frozenset({"precision", "channels_last", "microbatch"}),
    "cudnn_autotune": frozenset({"precision", "channels_last"}),
    "loader_workers": frozenset({"threads", "cache", "cache_decoded_images", "batches_by_index"}),
    "microbatch": frozenset({"precision", "compile"}),
    "precision": frozenset({"channels_last"}),
    "threads": frozenset({"loader_workers"}),
}
"""Technique -> those that can reverse its result: it is tried again after one of them joined the plan."""

ONE_OF: Mapping[str, str] = {"accumulation": "microbatch"}
"""Technique -> another that does the same; where both are proposed, only the other is tried."""

EVALUATION_ALONE = frozenset({"evaluation_batch"})
"""They change nothing of the training, so only evaluations are compared, and the losses are proven by their bits."""

MEMORY_ALONE = frozenset({"activation_checkpointing"})
"""They trade time for memory, and help where the job does not fit."""

AT_ONCE = 2
"""Values of one row that are tried first; the next ones only where the last of these was the best."""

OUT_OF_TIME = "the time ran out"
"""The reason of a choice that a search had no time to try."""

UNPROVEN = ", but there was no time to prove it"
"""How the reason of a choice ends that was faster and did not join for that."""

COMPILE_SECONDS, COMPILE_GAIN = 20.0, 1.5
"""What compiling is assumed to cost at least and to gain at most: a run that could not earn that has no trial of it."""

Member = TypeVar("Member")
Reasons = list[tuple[Choice, str]]
"""Choices that are not tried, each with the reason."""


def worth_trying(choices: Iterable[Choice], bounds: Mapping[str, Bound]) -> tuple[list[Choice], Reasons]:
    """Those that could gain enough to be seen, most promising first, and all others."""
    found, skipped = list[Choice](), Reasons()
    for choice in choices:
        bound = bounds.get(choice.technique)
        if bound is not None and bound.most_gain < WORTH_SEEING:
            skipped.append((choice, bound.reason))
        else:
            found.append(choice)
    return order(found, bounds), skipped


def allowed(proposed: Iterable[Choice], ceiling: Preserves) -> tuple[list[Choice], Reasons]:
    """Those that a search may try, in the order proposed, and those that it may not."""
    found, skipped, proposed = list[Choice](), Reasons(), list(proposed)
    names = {choice.technique for choice in proposed}
    for choice in proposed:
        reason = _refused(choice, names, ceiling)
        if reason is None:
            found.append(choice)
        else:
            skipped.append((choice, reason))
    return found, skipped


def changes_training(choice: Choice) -> bool:
    """Whether its steps learn something else, so that steps cannot compare it: target.py judges it by whole runs."""
    return claim_of(choice) is Preserves.TRAINING


def claim_of(choice: Choice) -> Preserves:
    return Preserves.TRAINING if choice.preserves is None else choice.preserves


def is_proven_by_bits(choice: Choice) -> bool:
    """Whether its training has to be the baseline's to the last bit."""
    return choice.preserves is Preserves.BITS or choice.technique in EVALUATION_ALONE


def _refused(choice: Choice, names: Collection[str], ceiling: Preserves) -> str | None:
    claim = claim_of(choice)
    if claim > ceiling:
        return f'its class is "{claim.words}", which --allow {ceiling.name.lower()} excludes'
    other = ONE_OF.get(choice.technique)
    if other in names:
        return f"it does the same as {other}, so only {other} is tried"
    if choice.technique in MEMORY_ALONE:
        return "it saves memory and costs time, and the job fits into memory without it"
    return None


def row_of(choice: Choice) -> str | None:
    """Choices with the same row are numbers of one technique with the same options. None for a value that is no number:
    it says nothing about another value."""
    if isinstance(choice.value, bool) or not isinstance(choice.value, int | float):
        return None
    return f"{choice.technique} {sorted(choice.options.items())}"


def first_values(choices: Iterable[Choice]) -> tuple[list[Choice], list[Choice]]:
    """The first values of every row with all that is in none, and those that wait for them."""
    first, waiting, seen = list[Choice](), list[Choice](), Counter[str]()
    for choice in choices:
        row = row_of(choice)
        (first if row is None or seen[row] < AT_ONCE else waiting).append(choice)
        seen[row or ""] += 1
    return first, waiting


def why_not_compiled(run_seconds: float, base: Sequence[Choice]) -> str | None:
    """Why a planned run is too short to try compiling; None where it is not. run_seconds: of its steps and evaluations
    with the base, without startup, which a compiled model does not make shorter."""
    saved = run_seconds * (1 - 1 / COMPILE_GAIN)
    if saved > COMPILE_SECONDS:
        return None
    plan = "with " + ", ".join(map(str, base)) if base else "in the baseline"
    return (
        f"compiling takes {COMPILE_SECONDS:.0f} s or more, once; {COMPILE_GAIN} times as fast would save {saved:.1f} s "
        f"of the {run_seconds:.1f} s that steps and evaluations take {plan} (startup is not counted)"
    )


def with_choice(base: Sequence[Choice], added: Choice) -> tuple[Choice, ...] | None:
    """The base with one choice more, in place of the one that it has of that technique; None where that is illegal, or
    changes nothing."""
    if any(same(added, choice) for choice in base):
        return None
    joined = (*(choice for choice in base if choice.technique != added.technique), added)
    return None if conflicts(joined) else joined


def joined(base: Sequence[Choice], winners: Iterable[Choice]) -> tuple[Choice, ...]:
    """The base with all winners, the first ones first; one that conflicts with those before it does not join."""
    found = tuple(base)
    for winner in winners:
        found = with_choice(found, winner) or found
    return found


def without(base: Sequence[Choice], *removed: Choice) -> tuple[Choice, ...]:
    """The base without these choices, and without those that need one of them."""
    found = tuple(choice for choice in base if not any(choice is other for other in removed))
    return tuple(choice for choice in found if not any(_needs(choice, other) for other in removed))


def _needs(choice: Choice, removed: Choice) -> bool:
    return removed.technique == "loader_workers" and choice.technique in ("prefetch", "persistent_workers")


def tried_again(technique: str, since: Iterable[Choice]) -> bool:
    """Whether choices that joined since a technique was tried can reverse its result."""
    return any(choice.technique in INTERACTIONS.get(technique, ()) for choice in since)


def same(one: Choice, other: Choice) -> bool:
    return (one.technique, one.value, dict(one.options)) == (other.technique, other.value, dict(other.options))


def plan_of(choices: Iterable[Choice]) -> Plan:
    return Plan(choices=tuple(PlannedChoice(choice=choice) for choice in choices))


def in_groups(members: Sequence[Member], most: int) -> Iterator[Sequence[Member]]:
    """As few groups as possible, of nearly one size."""
    groups = math.ceil(len(members) / most)
    ends = [len(members) * group // max(groups, 1) for group in range(groups + 1)]
    for begin, end in pairwise(ends):
        yield members[begin:end]
