"""Profiles the job under a plan before anything is compared: what can be tried, and how long things take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, median
from typing import Any

from hasten.errors import JobError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.formatting import printable
from hasten.facts.machine import free_memory
from hasten.facts.plan import Fingerprint, ProvenOn
from hasten.facts.trials import Budget, Costs, Surveyed
from hasten.measure.speedup_bound import PlannedRun
from hasten.tune.search.bounds import Around, Bound, bounds_of
from hasten.tune.search.candidates import plan_of
from hasten.tune.search.compared_arm import WARM_UP_STEPS, WARM_UP_WINDOWS, WINDOW_SECONDS
from hasten.tune.search.objective import RunLength
from hasten.tune.trials.arms import Arm, Arms
from hasten.tune.trials.search_key import environment_of, key_of
from hasten.tune.trials.survey import choice_of
from hasten.tune.trials.trial_limits import room_for

FEW_STEPS, MOST_STEPS = 3, 50
PROFILE_SECONDS = 0.5  # of the steps whose parts are timed
MUCH = 0.05  # share of the planned run that evaluations take, from which their spread is worth measuring at the end
LONG_SECONDS = 0.5  # of an evaluation, whose many batches average out
STARTING_SECONDS = 0.2  # of a process, until it builds the job
SURVEYED = ("device", "machine", "total_steps", "total_epochs", "evaluations", "stops_early", "refused", "seed")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanProfile:
    surveyed: Surveyed
    proposed: tuple[Choice, ...]
    treats: dict[str, str]  # technique -> the name of the symptom that it treats
    length: RunLength
    start_seconds: float  # of an arm, until its first step
    step_seconds: float
    turn_seconds: float
    evaluating_seconds: float  # that measuring the length of an evaluation takes, by a part of it where it is long
    budget: Budget
    around: Around
    room: int  # arms that fit into memory beside each other, 1 at least
    costs: Costs | None = None  # by the last comparison or confirmation, with the spread of all; None before

    @property
    def window_seconds(self) -> float:
        """Of a short window."""
        return self.steps_in(WINDOW_SECONDS) * self.step_seconds

    @property
    def arm_start_seconds(self) -> float:
        """Of an arm with short windows."""
        return self.seconds_to_start(self.steps_in(WINDOW_SECONDS))

    def seconds_to_start(self, steps: int) -> float:
        """Of an arm, until its first window of so many steps that counts."""
        more = WARM_UP_WINDOWS * steps if steps > WARM_UP_STEPS else 0
        return self.start_seconds + (WARM_UP_STEPS + more) * self.step_seconds

    def bounds(self) -> dict[str, Bound]:
        """Technique -> the most that it can gain under this plan."""
        run = PlannedRun(
            steps=self.length.steps,
            evaluations=self.length.evaluations,
            turns=self.length.epochs,
            turn_seconds=self.turn_seconds,
            step_seconds=self.step_seconds,
        )
        return bounds_of(self.budget, run, self.around, self.treats)

    @property
    def run_seconds(self) -> float:
        """Of the planned run, roughly."""
        return self.length.steps * self.step_seconds + self.length.evaluations * self.budget.evaluation

    @property
    def evaluations_at_the_end(self) -> int:
        """In how many repeats every arm evaluates when a plan is confirmed. Before, only arms evaluate that change
        nothing else."""
        if not self.length.evaluations:
            return 0
        much = self.length.evaluations * self.budget.evaluation > MUCH * self.run_seconds
        return 4 if much and self.budget.evaluation < LONG_SECONDS else 2

    def steps_in(self, seconds: float) -> int:
        """Whole steps of a window of about so many seconds, at most a third of the planned run."""
        return max(1, min(round(seconds / self.step_seconds), self.length.steps // 3))


def profile_plan(arms: Arms, job: str, ceiling: Preserves, base: Sequence[Choice] = ()) -> PlanProfile:
    """Raises ArmFailed when the job fails under this plan, JobError when its run has no planned end, NotMeasurable
    where other programs never leave the processor to it."""
    return arms.other_programs.undisturbed(partial(_profile, arms, job, ceiling, base))


def _profile(arms: Arms, job: str, ceiling: Preserves, base: Sequence[Choice]) -> PlanProfile:
    with arms.start("profile", plan_of(base)) as arm:
        answer = arm.ask("survey")
        first = arm.window(1).seconds
        second = arm.window(1).seconds
        steps = max(FEW_STEPS, min(math.ceil(PROFILE_SECONDS / second), MOST_STEPS))
        budget, around, evaluating = ask_budget(arm, steps=steps, called="planned" if base else "plain")
        step = arm.window(max(steps // 2, 1)).seconds_per_step
        if around.on_cpu:  # elsewhere a step whose parts are timed waits at every boundary
            step = mean([budget.step, step])
        turns = [arm.first_turn or 0.0, *arm.turns]
        if not base:
            longest = max(first, second, budget.evaluation, evaluating, *turns)
            arms.expect(build_seconds=arm.build_seconds, request_seconds=longest)
        start = STARTING_SECONDS + arm.build_seconds + turns[0] + max(first - step, 0.0)
        room = _room(arm)
        process_seconds = arms.process_seconds(arm)
    busy = not arms.other_programs.are_avoided
    surveyed = replace(_surveyed(job, answer, ceiling, busy=busy), process_seconds=process_seconds)
    if surveyed.total_steps is None:
        raise JobError("max_steps", "is not given, and the data has no length", "set the length: max_steps=10_000")
    return PlanProfile(
        surveyed=surveyed,
        proposed=tuple(map(choice_of, answer["proposed"])),
        treats=answer["treats"],
        length=RunLength(
            steps=surveyed.total_steps,
            epochs=surveyed.total_epochs or 1,
            evaluations=surveyed.evaluations,
            evaluation_seconds=budget.evaluation,
            process_seconds=process_seconds,
        ),
        start_seconds=start,
        step_seconds=step,
        turn_seconds=median(turns),
        evaluating_seconds=evaluating,
        budget=budget,
        around=around,
        room=room,
    )


def ask_budget(arm: Arm, *, steps: int, called: str = "plain") -> tuple[Budget, Around, float]:
    """The budget of an arm's plan, over so many steps and one evaluation; what else its bounds depend on; and the
    seconds that measuring the length of an evaluation takes. Raises ArmFailed."""
    found = arm.ask("budget", steps=steps)
    return Budget(arm=called, **found["spent"]), Around(**found["around"]), found["evaluating"]


def _room(arm: Arm) -> int:
    """How many arms like this one, which lives, fit beside each other, on the host and on its device."""
    beside = room_for(arm.held_bytes, free_memory())
    device = arm.ask("device memory")
    if device["held"]:
        beside = min(beside, room_for(device["held"], device["free"]))
    return 1 + beside


def _surveyed(job: str, answer: dict[str, Any], ceiling: Preserves, *, busy: bool) -> Surveyed:
    proven_on = ProvenOn(**answer["proven_on"])
    environment = environment_of(proven_on)
    return Surveyed(
        key=key_of(answer, environment, busy=busy),
        job=printable(job),
        environment=environment,
        fingerprint=Fingerprint(**answer["fingerprint"]),
        proven_on=proven_on,
        ceiling=ceiling,
        **{name: answer[name] for name in SURVEYED},
    )
