"""Profiles the job under a plan before anything is compared: what can be tried, and where the seconds of a run go."""

from __future__ import annotations

import math
import time
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
from hasten.tuning.search.bounds import Around, Bound, bounds_of, is_for_turns
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.search.comparison import (
    WARM_UP_STEPS,
    WARM_UP_WINDOWS,
    WINDOW_SECONDS,
)
from hasten.tuning.search.objective import LONG_TURN_SECONDS, Interruptions, RunLength
from hasten.tuning.trials.arms import Arm, Arms, room_for
from hasten.tuning.trials.search_key import environment_of, key_of
from hasten.tuning.trials.survey import choice_of
from hasten.tuning.trials.trial import EVALUATION_SECONDS

FEW_STEPS, MOST_STEPS = 3, 50
PROFILE_SECONDS = 0.5  # of the steps whose parts are timed
SOME_INTERRUPTIONS, INTERRUPTIONS_SECONDS = 2, 10.0  # that the profile of a script waits for
LEAST_COUNTED = 0.1  # of all steps, that windows are assumed to count
EVALUATIONS_AT_THE_END = 4  # of every arm
STARTING_SECONDS = 0.2  # of a process, until it builds the job
COMPILING_SECONDS = 3.0  # of a first step that may compile, which other threads would make it do again
ONE_THREAD_SECONDS = 1.0  # that a step with one thread may take, at most, to be timed
SURVEYED = (
    *("device", "machine", "total_steps", "total_epochs", "ends_with_turn"),
    *("evaluations", "stops_early", "refused", "seed"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanProfile:
    surveyed: Surveyed
    proposed: tuple[Choice, ...]
    treats: dict[str, str]  # technique -> the name of the symptom that it treats
    length: RunLength
    start_seconds: float  # of an arm, until its first step
    step_seconds: float
    interruption_seconds: float  # of a step, its share
    budget: Budget
    around: Around
    room: int  # arms that fit into memory beside each other, 1 at least
    recipe_steps: int = 0  # whose recipe a proof reads, in a process of either arm; none of a job
    gradient_steps: int = 0  # whose time a proof of gradients takes; of a job other ones
    gradient_processes: int = 0  # that it starts
    accepted_steps: int = 0  # of a patched script, in its trial and plainly, whose losses are compared; none of a job
    costs: Costs | None = None  # by all comparisons and confirmations so far; None before
    notices: tuple[str, ...] = ()  # of loading the job, for the user

    def measures_turns(self, choice: Choice) -> bool:
        """Whether a trial of this choice measures the time between two epochs."""
        return not self.length.has_long_turns or is_for_turns(choice.technique)

    @property
    def measured_turn_seconds(self) -> float:
        """How long an arm takes to measure one; 0 where the run has none."""
        return self.length.turn_seconds if self.length.turns else 0.0

    @property
    def elapsed_seconds(self) -> float:
        """Of a step, with its share of what a script does between two steps."""
        return self.step_seconds + self.interruption_seconds

    @property
    def counted_seconds(self) -> float:
        """From one step that a window counts to the next: those that are interrupted count in no window."""
        met = self.length.interruptions
        counted = 1 - len(met.seconds) / met.among if met.among else 1.0
        return self.elapsed_seconds / max(counted, LEAST_COUNTED)

    @property
    def window_seconds(self) -> float:
        """Of a short window."""
        return self.steps_in(WINDOW_SECONDS) * self.counted_seconds

    @property
    def arm_start_seconds(self) -> float:
        """Of an arm with short windows."""
        return self.seconds_to_start(self.steps_in(WINDOW_SECONDS))

    def seconds_to_start(self, steps: int) -> float:
        """Of an arm, until its first window of so many steps that counts."""
        more = WARM_UP_WINDOWS * steps if steps > WARM_UP_STEPS else 0
        return self.start_seconds + (WARM_UP_STEPS + more) * self.counted_seconds

    def bounds(self) -> dict[str, Bound]:
        """Technique -> the most that it can gain under this plan."""
        run = PlannedRun(
            steps=self.length.steps,
            evaluations=self.length.evaluations,
            turns=self.length.epochs,
            turn_seconds=self.length.turn_seconds,
            interruption_seconds=self.length.steps * self.interruption_seconds,
            step_seconds=self.step_seconds,
        )
        return bounds_of(self.budget, run, self.around, self.treats)

    @property
    def evaluating_seconds(self) -> float:
        """That measuring the length of an evaluation takes, by a part of it where it is long."""
        return min(self.budget.evaluation, EVALUATION_SECONDS)

    @property
    def run_seconds(self) -> float:
        """Of the planned run, roughly."""
        return self.length.steps * self.step_seconds + self.length.evaluations * self.budget.evaluation

    @property
    def evaluations_at_the_end(self) -> int:
        """In how many repeats every arm evaluates when a plan is confirmed. Before, only arms evaluate that change
        nothing else."""
        return EVALUATIONS_AT_THE_END if self.length.evaluations else 0

    def steps_in(self, seconds: float) -> int:
        """Whole steps of a window of about so many seconds, at most a third of the planned run."""
        return max(1, min(round(seconds / self.step_seconds), self.length.steps // 3))


def profile_plan(
    arms: Arms, job: str, ceiling: Preserves, base: Sequence[Choice] = (), baseline: PlanProfile | None = None
) -> PlanProfile:
    """baseline: its profile, whose turns are not measured again where they are long; None where base is empty.

    Raises ArmFailed when the job fails under this plan, JobError when its run has no planned end, NotMeasurable
    where other programs never leave the processor to it."""
    return arms.other_programs.undisturbed(partial(_profile, arms, job, ceiling, base, baseline))


def _profile(
    arms: Arms, job: str, ceiling: Preserves, base: Sequence[Choice], baseline: PlanProfile | None
) -> PlanProfile:
    with arms.start("profile", plan_of(base)) as arm:
        answer = arm.ask("survey")
        first = arm.window(1).seconds
        second = arm.window(1).seconds
        steps = max(FEW_STEPS, min(math.ceil(PROFILE_SECONDS / second), MOST_STEPS))
        found = arm.ask("budget", steps=steps)
        budget = Budget(arm="planned" if base else "plain", **found["spent"])
        around = Around(**found["around"])
        step = arm.window(max(steps // 2, 1)).seconds_per_step
        if around.on_cpu:  # elsewhere a step whose parts are timed waits at every boundary
            step = mean([budget.step, step])
        if answer["interrupted"]:
            _meet_interruptions(arm, step)
        turn = _turn_seconds(arm, answer, base, baseline)
        interruptions = Interruptions(tuple(arm.interruptions), arm.steps_seen)
        start = STARTING_SECONDS + arm.build_seconds + (arm.first_turn or 0.0) + max(first - step, 0.0)
        room = _room(arm)
        if around.on_cpu and not around.reads_beside and first < COMPILING_SECONDS:
            counts = [choice["value"] for choice in answer["proposed"] if choice["technique"] == "threads"]
            around = _with_one_thread(arm, around, counts, step)
        process_seconds = arms.process_seconds(arm)
    busy = not arms.other_programs.are_avoided
    surveyed = replace(
        _surveyed(job, answer, ceiling, busy=busy, options=arms.options.words), process_seconds=process_seconds
    )
    if surveyed.total_steps is None:
        raise JobError("max_steps", "is not given, and the data has no length", "set the length: max_steps=10_000")
    return PlanProfile(
        surveyed=surveyed,
        proposed=tuple(map(choice_of, answer["proposed"])),
        treats=answer["treats"],
        length=RunLength(
            steps=surveyed.total_steps,
            epochs=surveyed.total_epochs or 1,
            ends_with_turn=surveyed.ends_with_turn,
            evaluations=surveyed.evaluations,
            evaluation_seconds=budget.evaluation,
            turn_seconds=turn,
            process_seconds=process_seconds,
            interruptions=interruptions,
        ),
        start_seconds=start,
        step_seconds=step,
        interruption_seconds=interruptions.of_a_step,
        budget=budget,
        around=around,
        room=room,
        recipe_steps=answer["recipe_steps"],
        gradient_steps=answer["gradient_steps"],
        gradient_processes=answer["gradient_processes"],
        accepted_steps=answer["accepted_steps"],
        notices=tuple(arm.notices),
    )


def _turn_seconds(arm: Arm, answer: dict[str, Any], base: Sequence[Choice], baseline: PlanProfile | None) -> float:
    """The wait for a job's first batch is taken for that of every epoch, where it is short or the only one. What a
    script does before its first batch is its start."""
    are_same = not any(is_for_turns(each.technique) for each in base)
    if baseline is not None and baseline.length.has_long_turns and are_same:
        return baseline.length.turn_seconds
    first, is_only = arm.first_turn or 0.0, answer["total_epochs"] in (None, 1)
    of_all = not answer["ends_with_turn"] and (is_only or first <= LONG_TURN_SECONDS)
    return median(arm.turns or [first if of_all else arm.ask("turn")["seconds"]])


def _with_one_thread(arm: Arm, around: Around, proposed: Sequence[int], step_seconds: float) -> Around:
    """With the seconds of a step that one thread computes. It is measured where only fewer threads are proposed, and
    where such a step takes less than ONE_THREAD_SECONDS. Its first step is not timed."""
    threads = arm.ask("threads", count=1)["before"]
    if proposed and max(proposed) <= threads // 2 and threads * step_seconds < ONE_THREAD_SECONDS:
        arm.window(1)
        alone = arm.window(max(1, min(round(WINDOW_SECONDS / step_seconds), FEW_STEPS))).seconds_per_step
        around = replace(around, threads=threads, one_thread=alone / step_seconds)
    arm.ask("threads", count=threads)
    return around


def _meet_interruptions(arm: Arm, step_seconds: float) -> None:
    """Two, as the steps between them say how often they come; or as many as there are within some seconds."""
    until = time.monotonic() + INTERRUPTIONS_SECONDS
    while len(arm.interruptions) < SOME_INTERRUPTIONS and time.monotonic() < until:
        arm.window(max(1, round(PROFILE_SECONDS / step_seconds)))


def _room(arm: Arm) -> int:
    """How many arms like this one, which lives, fit beside each other, on the host and on its device."""
    beside = room_for(arm.held_bytes, free_memory())
    device = arm.ask("device memory")
    if device["held"]:
        beside = min(beside, room_for(device["held"], device["free"]))
    return 1 + beside


def _surveyed(job: str, answer: dict[str, Any], ceiling: Preserves, *, busy: bool, options: list[str]) -> Surveyed:
    proven_on = ProvenOn(**answer["proven_on"])
    environment = environment_of(proven_on)
    return Surveyed(
        key=key_of(answer, environment, busy=busy, options=options),
        job=printable(job),
        environment=environment,
        fingerprint=Fingerprint(**answer["fingerprint"]),
        proven_on=proven_on,
        ceiling=ceiling,
        options=tuple(options),
        **{name: answer[name] for name in SURVEYED},
    )
