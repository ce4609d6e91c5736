"""What is known of a plan: the plan itself, and the records of its trials in the order they can be told.

The file of trials is written while a search goes on, and a search can be interrupted, go on, and be run again. So the
latest of what can be there once counts, and all records belong to one job and machine: those that the plan states, or
the last that were surveyed where it states none. What belongs to another is left out, and counted.
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
    Memory,
    Noise,
    Plain,
    Proven,
    Rates,
    Reached,
    Record,
    Step,
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
    rates: Rates | None = None
    budgets: Mapping[str, Budget]  # by arm, as are the others
    memory: Mapping[str, Memory]
    tried: tuple[Tried, ...] = ()
    proven: tuple[Proven, ...] = ()
    reached: tuple[Reached, ...] = ()
    way: tuple[Step, ...] = ()  # from the plain job
    ended: Ended | None = None  # None where the last search was interrupted, or goes on
    outdated: int = 0  # records of another job or machine

    @property
    def job(self) -> str:
        if self.surveyed is not None:
            return self.surveyed.job
        return self.plan.job.source if self.plan.job is not None else ""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(item.choice for item in self.plan.choices)

    @property
    def timed(self) -> list[Choice]:
        """Those of the plan that are judged by the time of the planned run."""
        return _timed(self.choices, self.reached)

    @property
    def edited(self) -> bool:
        """Whether the plan's choices are others than those that its figures belong to."""
        return self.measured is not None and not _same(self.timed, self.measured.choices)

    @property
    def measured(self) -> Confirmed | None:
        """What tells the plan's own speed; None where nothing does. Of other choices it has to be proven: else it says
        nothing of these."""
        found, ours = self.confirmed, self.timed
        if found is None or not ours:
            return None
        return found if _same(ours, found.choices) or is_proven(found) else None

    @property
    def came_to_nothing(self) -> bool:
        """Whether a search has ended, and nothing that it tried was proven to be of use."""
        return self.ended is not None and not self.ended.choices and not self.choices

    @property
    def by_hand(self) -> bool:
        """Whether no search seems to have written the plan."""
        return bool(self.choices) and self.plan.job is None and self.surveyed is None

    @property
    def gained(self) -> tuple[Reached, ...]:
        """Of the plan's choices that change training, in the order in which they joined. One may have been tried
        before, without those that joined first; the last time is the one that counts."""
        ours, found = set(map(identity, self.choices)), dict[str, Reached]()
        for record in self.reached:
            name = identity(record.choice)
            if record.kept and name in ours:
                found.pop(name, None)
                found[name] = record
        return tuple(found.values())


def read_evidence(plan: Path) -> Evidence:
    """All that is known of the plan in this file; of a search that has not come to a plan yet, what it has found.

    Raises PlanError when the plan or a record is wrong, StorageFailed when one cannot be read.
    """
    trials = trials_beside(plan)
    found = trials.is_file()
    stated = Plan() if found and not plan.exists() else read_plan(plan)
    return gathered(stated, str(plan), read_trials(trials) if found else [])


def gathered(plan: Plan, path: str, records: Sequence[Record]) -> Evidence:
    ours = _of_one_job(plan, records)
    return Evidence(
        plan=plan,
        path=path,
        surveyed=_last(ours, Surveyed),
        noise=_last(ours, Noise),
        plain=_last(ours, Plain),
        confirmed=_confirmed(plan, ours),
        reached=tuple({(identity(r.choice), tuple(map(identity, r.on))): r for r in _all(ours, Reached)}.values()),
        curves=_last(ours, Curves),
        rates=_last(ours, Rates),
        budgets={record.arm: record for record in _all(ours, Budget)},
        memory={record.arm: record for record in _all(ours, Memory)},
        tried=tuple({(identity(r.choice), tuple(map(identity, r.on))): r for r in _all(ours, Tried)}.values()),
        proven=tuple({identity(record.choice): record for record in _all(ours, Proven)}.values()),
        way=_last_way(_all(ours, Step)),
        ended=_ended(ours),
        outdated=len(records) - len(ours),
    )


def identity(choice: Choice) -> str:
    """Equal for choices that do the same, whatever they claim to preserve."""
    return json.dumps([choice.technique, choice.value, dict(choice.options)], sort_keys=True)


def _of_one_job(plan: Plan, records: Sequence[Record]) -> list[Record]:
    """Those of the last job and machine that were surveyed, of the last that are the plan's where it states some. None
    where all are of another: its seconds are not the plan's."""
    surveyed = _all(records, Surveyed)
    if not surveyed:
        return list(records)
    last = next((each for each in reversed(surveyed) if _is_of(plan, each)), None)
    found, key = list[Record](), None
    for record in records:
        key = record.key if isinstance(record, Surveyed) else key
        if last is not None and key == last.key:
            found.append(record)
    return found


def _is_of(plan: Plan, surveyed: Surveyed) -> bool:
    return plan.job in (None, surveyed.fingerprint) and plan.machine in (None, surveyed.proven_on)


def _confirmed(plan: Plan, records: Sequence[Record]) -> Confirmed | None:
    """The last that was confirmed with the plan's own choices; where there is none, the last."""
    found = _all(records, Confirmed)
    choices = _timed([item.choice for item in plan.choices], _all(records, Reached))
    return next((record for record in reversed(found) if _same(record.choices, choices)), found[-1] if found else None)


def _timed(choices: Sequence[Choice], reached: Sequence[Reached]) -> list[Choice]:
    """Those that are judged by the time of the planned run: without what is judged by the time to the target, and what
    ends the run there."""
    kept = {identity(record.choice) for record in reached if record.kept}
    ends = {"stop_at"} if kept else set[str]()
    return [choice for choice in choices if identity(choice) not in kept and choice.technique not in ends]


def _same(some: Sequence[Choice], others: Sequence[Choice]) -> bool:
    return sorted(map(identity, some)) == sorted(map(identity, others))


def _ended(records: Sequence[Record]) -> Ended | None:
    """How the last search ended; None where it has not."""
    last = next((record for record in reversed(records) if isinstance(record, Surveyed | Ended)), None)
    return last if isinstance(last, Ended) else None


def _last_way(steps: Sequence[Step]) -> tuple[Step, ...]:
    """From the last one that starts at the plain job."""
    starts = [position for position, step in enumerate(steps) if step.choice is None]
    return tuple(steps[starts[-1] :]) if starts else ()


def _all(records: Sequence[Record], kind: type[Kind]) -> list[Kind]:
    return [record for record in records if isinstance(record, kind)]


def _last(records: Sequence[Record], kind: type[Kind]) -> Kind | None:
    return next((record for record in reversed(records) if isinstance(record, kind)), None)
