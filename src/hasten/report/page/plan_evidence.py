"""What is known of a plan: the plan itself and the records of its trials.

A search can be interrupted, resumed and repeated, so the latest of each record counts. Records of another job or
machine than the plan states are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hasten.facts.choice import Choice
from hasten.facts.plan import Plan
from hasten.facts.plan_file import read_plan
from hasten.facts.trials import (
    Budget,
    Confirmed,
    Curves,
    Ended,
    Noise,
    Plain,
    Proven,
    Reached,
    Record,
    Surveyed,
    Tried,
    is_proven,
    read_trials,
    trials_beside,
)

Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """None and empty stand for what the file of trials does not have."""

    plan: Plan
    path: str  # of the plan, as it was named
    surveyed: Surveyed | None = None
    noise: Noise | None = None
    plain: Plain | None = None
    confirmed: Confirmed | None = None
    curves: Curves | None = None
    budgets: Mapping[str, Budget]  # by arm
    tried: tuple[Tried, ...] = ()
    proven: tuple[Proven, ...] = ()
    reached: tuple[Reached, ...] = ()
    ended: Ended | None = None  # None where the last search was interrupted, or still runs
    trains_plainly: str = ""  # the command of a script that needs no plan, or whose patch is applied

    @property
    def job(self) -> str:
        if self.surveyed is not None:
            return self.surveyed.job
        return self.plan.job.source if self.plan.job is not None else ""

    @property
    def options(self) -> tuple[str, ...]:
        """--set and -- of the search."""
        return self.surveyed.options if self.surveyed is not None else ()

    @property
    def stops_early(self) -> bool:
        return self.surveyed is not None and self.surveyed.stops_early

    @property
    def choices(self) -> list[Choice]:
        return [item.choice for item in self.plan.choices]

    @property
    def edited(self) -> bool:
        """Whether the plan's choices differ from those that were measured."""
        return self.measured is not None and not _same(_timed(self.choices, self.reached), self.measured.choices)

    @property
    def measured(self) -> Confirmed | None:
        """The confirmation of the plan's own speed. One of other choices counts only if it is proven."""
        found, ours = self.confirmed, _timed(self.choices, self.reached)
        if found is None or not ours:
            return None
        return found if _same(ours, found.choices) or is_proven(found) else None

    @property
    def has_proven_speed(self) -> bool:
        return self.measured is not None and is_proven(self.measured)

    @property
    def came_to_nothing(self) -> bool:
        """Whether a search has ended without a plan."""
        return self.ended is not None and not self.ended.choices and not self.choices

    @property
    def gained(self) -> tuple[Reached, ...]:
        """Of the plan's choices that change training, in the order in which they joined. A choice may have been tried
        more than once; the last time counts."""
        ours, found = set(map(identity, self.choices)), dict[str, Reached]()
        for record in self.reached:
            name = identity(record.choice)
            if record.kept and name in ours:
                found.pop(name, None)
                found[name] = record
        return tuple(found.values())


def read_evidence(plan: Path) -> Evidence:
    """All that is known of the plan in this file; before a search has written one, what it has found so far.

    Raises PlanError when the plan or a record is wrong, StorageFailed when one cannot be read.
    """
    trials = trials_beside(plan)
    found = trials.exists()
    stated = Plan() if found and not plan.exists() else read_plan(plan)
    return gathered(stated, str(plan), read_trials(trials) if found else [])


def gathered(plan: Plan, path: str, records: Sequence[Record]) -> Evidence:
    """records: of one job and machine, as a search writes them."""
    surveyed = _last(records, Surveyed)
    of_the_plan = surveyed is None or (
        plan.job in (None, surveyed.fingerprint) and plan.machine in (None, surveyed.proven_on)
    )
    ours: Sequence[Record] = records if of_the_plan else ()
    last = next((record for record in reversed(ours) if isinstance(record, Surveyed | Ended)), None)
    return Evidence(
        plan=plan,
        path=path,
        surveyed=_last(ours, Surveyed),
        noise=_last(ours, Noise),
        plain=_last(ours, Plain),
        confirmed=_confirmed(plan, ours),
        curves=_last(ours, Curves),
        budgets={record.arm: record for record in _all(ours, Budget)},
        tried=tuple({(identity(r.choice), *map(identity, r.on)): r for r in _all(ours, Tried)}.values()),
        proven=tuple({identity(record.choice): record for record in _all(ours, Proven)}.values()),
        reached=tuple({(identity(r.choice), *map(identity, r.on)): r for r in _all(ours, Reached)}.values()),
        ended=last if isinstance(last, Ended) else None,
    )


def identity(choice: Choice) -> str:
    """Equal for choices that do the same, whatever they claim to preserve."""
    return json.dumps([choice.technique, choice.value, dict(choice.options)], sort_keys=True)


def _confirmed(plan: Plan, records: Sequence[Record]) -> Confirmed | None:
    """The last that was confirmed with the plan's own choices; where there is none, the last."""
    found = _all(records, Confirmed)
    choices = _timed([item.choice for item in plan.choices], _all(records, Reached))
    return next((record for record in reversed(found) if _same(record.choices, choices)), found[-1] if found else None)


def _timed(choices: Sequence[Choice], reached: Sequence[Reached]) -> list[Choice]:
    """Those judged by the time of the planned run: without those judged by the time to the target, and the one that
    ends the run there."""
    kept = {identity(record.choice) for record in reached if record.kept}
    ends = {"stop_at"} if kept else set[str]()
    return [choice for choice in choices if identity(choice) not in kept and choice.technique not in ends]


def _same(some: Sequence[Choice], others: Sequence[Choice]) -> bool:
    return sorted(map(identity, some)) == sorted(map(identity, others))


def _all(records: Sequence[Record], kind: type[Kind]) -> list[Kind]:
    return [record for record in records if isinstance(record, kind)]


def _last(records: Sequence[Record], kind: type[Kind]) -> Kind | None:
    return next(reversed(_all(records, kind)), None)
