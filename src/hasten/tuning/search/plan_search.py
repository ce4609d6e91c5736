"""The search for a plan: rounds of trials, the proofs, the confirmation, and the report.

1. Profile the baseline: what can be tried, and how long things take.
2. Rounds: choices that are faster join the plan (rounds.py).
3. Prove that the choices preserve what they claim (proof/claim_proofs.py).
4. Confirm the whole plan beside the baseline, and remove what earns nothing (confirmation.py).
5. Where the ceiling allows it, judge what changes training by whole runs, on top of that plan (target.py).

Every result is a record of the file of trials, written at once. A search that gets the records of an earlier one on the
same job and machine repeats none of its trials, only the proofs and the confirmation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hasten.errors import InvalidMeasurement, NotMeasurable
from hasten.facts.choice import Choice
from hasten.facts.trials import (
    Confirmed,
    Doing,
    Ended,
    Proven,
    Record,
    Surveyed,
    Tried,
    differs_from_itself,
    is_proven,
)
from hasten.tuning.proof.claim_proofs import Prover, prove
from hasten.tuning.proof.job_prover import JobProver
from hasten.tuning.proof.short_runs import SEEDS, ShortRuns
from hasten.tuning.search.candidates import without
from hasten.tuning.search.comparison import ComparisonSettings
from hasten.tuning.search.confirmation import WHOLE, confirm
from hasten.tuning.search.expected_seconds import (
    confirmation_seconds,
    confirmation_settings,
    end_seconds,
    proofs_seconds,
    seconds_to_confirm,
    seconds_to_result,
)
from hasten.tuning.search.known_profiles import KnownProfiles
from hasten.tuning.search.objective import pooled
from hasten.tuning.search.plan_profile import PlanProfile, profile_plan
from hasten.tuning.search.round_trials import LATE_SECONDS, LATER, RoundTrials, watching
from hasten.tuning.search.rounds import SearchRounds
from hasten.tuning.search.search_log import SHARE_OF_CURVES, Options, SearchLog, ratio_of
from hasten.tuning.search.target import TargetGain, judge_training
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.other_programs import WHEN_QUIET
from hasten.tuning.trials.trial_outcome import ArmFailed

LONG_PROFILE_SECONDS = 8.0  # that a profile for the report alone may take
PROVING_PROCESSES = 2 + SEEDS  # of a plan: for its recipe, its gradients and each seed
OVERRUN, LEAST_SECONDS = 3.0, 120.0  # from which multiple on of their expected time proofs are ended, and not before


@dataclass(kw_only=True, slots=True)
class Found:
    """profile: of the baseline. proven: the best plan that is proven so far; gained: what may be added to it that
    changes training, None where nothing may, or nothing reaches the target sooner."""

    profile: PlanProfile
    log: SearchLog
    proven: Confirmed | None = None
    gained: TargetGain | None = None
    interrupt: KeyboardInterrupt | None = None  # that ended the search

    @property
    def interrupted(self) -> bool:
        return self.interrupt is not None

    @property
    def has_plan(self) -> bool:
        return self.proven is not None or self.gained is not None

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Of the best plan; none where there is no plan."""
        best = self.gained or self.proven
        return best.choices if best is not None else ()

    @property
    def not_reached(self) -> list[str]:
        """As of the log, without what is in the plan: its trial can have ended early, and the whole plan shown it."""
        kept = {choice.technique for choice in self.choices}
        return [name for name in self.log.not_reached if name not in kept]

    @property
    def not_combined(self) -> list[Tried]:
        """As of the log, without what is in the plan."""
        kept = {choice.technique for choice in self.choices}
        return [each for each in self.log.not_combined if each.choice.technique not in kept]


class Search:
    """Call it once. keep: receives every record at once; report: what the search is doing; earlier: the records of a
    search of the same key; began: by time.monotonic(), when its time began, None for now; prover: see prove."""

    def __init__(
        self,
        arms: Arms,
        job: str,
        options: Options,
        *,
        keep: Callable[[Record], None],
        report: Callable[[Doing], None],
        earlier: Callable[[Surveyed], Sequence[Record]],
        began: float | None = None,
        prover: Callable[[Arms, Path], Prover] = JobProver,
    ) -> None:
        self._arms, self._earlier, self._prover = arms, earlier, prover
        began = time.monotonic() if began is None else began
        lost_seconds = partial(getattr, arms.other_programs, "lost_seconds")
        self._log = SearchLog(options=options, keep=keep, report=report, lost_seconds=lost_seconds, began=began)
        self._profiles = KnownProfiles(log=self._log, new_profile=partial(profile_plan, arms, job, options.ceiling))

    def __call__(self) -> Found:
        """Raises ArmFailed when the baseline fails, and NotMeasurable where other programs never left the processor to
        it before a plan was proven. A KeyboardInterrupt ends the search, and returns what it found."""
        log = self._log
        log.report(Doing(what="profiling the baseline"))
        profile = self._profiles.of(())
        for text in profile.notices:
            log.report(Doing(what=text, stays=True))
        log.known = self._earlier(profile.surveyed)
        log.keep(profile.surveyed)
        log.keep(profile.budget)
        found = Found(profile=profile, log=log)
        try:
            trials = RoundTrials(arms=self._arms, log=log, baseline=profile)
            joined = SearchRounds(trials=trials, profile_of=self._profiles.of).run()
            found.profile = trials.baseline
            self._confirm(found, self._prove(found, joined))
            self._show(found)
            # These runs are not counted as the search's time.
            found.gained = judge_training(self._arms, log, found.profile, found.choices)
            log.keep(Ended(choices=found.choices, seconds=log.seconds))
        except NotMeasurable as error:
            if not found.has_plan:
                raise
            log.report(Doing(what=f"{error.what}; what was proven before is kept", stays=True))
        except KeyboardInterrupt as interrupt:
            found.interrupt = interrupt
        return found

    def _prove(self, found: Found, joined: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """The choices that preserve what they claim."""
        profile, log = found.profile, self._log
        joined = self._in_time(profile, joined)
        planned = self._profiles.nearest(joined, profile)
        pair_seconds = profile.step_seconds + planned.step_seconds
        steps = int(log.options.seconds * SHARE_OF_CURVES / (SEEDS * pair_seconds))
        runs = ShortRuns(first_seed=profile.surveyed.seed, steps=min(steps, profile.length.steps))
        once = PROVING_PROCESSES * self._once(joined, planned)
        if joined:
            to_end = once + end_seconds(profile, planned, joined, log.options.seconds)
            log.report(Doing(what="proving what was faster", to_end=to_end))
        expected = proofs_seconds(profile, planned, joined, log.options.seconds) + once
        most = max(OVERRUN * expected, log.seconds_left, LEAST_SECONDS)
        return prove(self._arms, joined, log, runs, self._prover, seconds=most)

    def _in_time(self, profile: PlanProfile, joined: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """Those that there is time to prove and to confirm: the first choice of a search joins whatever the time, and a
        compiled one takes none of it. What gains least is dropped where that is enough, else what takes longest."""
        log, later = self._log, LATER * self._log.options.seconds
        most = max(log.seconds_left + later, LATE_SECONDS)

        def needed(choices: tuple[Choice, ...]) -> float:
            return end_seconds(profile, self._profiles.nearest(choices, profile), choices, log.options.seconds)

        def gain(choices: tuple[Choice, ...]) -> float:
            return math.prod(ratio_of(each) for each in map(log.last_trial, choices) if each is not None)

        while joined and (seconds := needed(joined)) > most:
            shorter = [without(joined, each) for each in reversed(joined)]
            enough = [each for each in shorter if needed(each) <= most]
            left = max(enough, key=gain) if enough else min(shorter, key=needed)
            reason = f"to prove and confirm the plan with it takes about {seconds:.0f} s, more than the search has left"
            for each in joined:
                if each not in left:
                    log.add(Proven(choice=each, passes=False, reason=reason, unanswered=True))
            joined = left
        return joined

    def _confirm(self, found: Found, base: Sequence[Choice]) -> None:
        if not base:
            return

        profile = found.profile

        def kept(confirmed: Confirmed) -> Confirmed:
            plain = pooled(confirmed.plain, profile.costs)
            confirmed, found.profile = replace(confirmed, plain=plain), replace(profile, costs=plain)
            self._log.keep(confirmed)
            return confirmed

        def proven(confirmed: Confirmed) -> None:
            if not self._is_spoiled(confirmed):
                found.proven = kept(confirmed)

        def again(left: Sequence[Choice]) -> ComparisonSettings | None:
            return self._settings(profile, left) if self._has_time_for(profile, left) else None

        settings = self._settings(profile, base)
        self._log.report(Doing(what="confirming", to_end=self._seconds_to_end(profile, base, settings)))
        run = partial(
            confirm,
            self._arms,
            base,
            settings,
            profile.length,
            watching(self._log, "confirming"),
            proven,
            room=profile.room,
            again=again,
        )
        try:
            final = run()
            if self._is_spoiled(final.confirmed):
                with self._log.on_top():
                    final = run()
        except ArmFailed as failure:
            if found.proven is None:
                who = "the plan with it" if failure.arm == WHOLE else "the job itself, beside the plan with it,"
                self._log.add_failure(base, failure, who)
            return
        if self._is_spoiled(final.confirmed):
            noise = final.confirmed.noise
            raise NotMeasurable(
                f"not measurable now: two processes of the same job differ in speed, {noise}", fix=WHEN_QUIET
            )
        if found.proven is None:
            kept(final.confirmed)

    def _is_spoiled(self, confirmed: Confirmed) -> bool:
        """Whether something but other programs' use of the processor changed the speed meanwhile, and the plan is not
        faster by far more than that: then the job differs from itself in a second process."""
        avoided = self._arms.other_programs.are_avoided
        return avoided and differs_from_itself(confirmed.noise) and not is_proven(confirmed)

    # ── the time of the confirmation ────────────────────────────────────────────────────────────────────────────────

    def _settings(self, baseline: PlanProfile, base: Sequence[Choice]) -> ComparisonSettings:
        """For the time that is left."""
        nearest = self._profiles.nearest(base, baseline)
        once, seconds = self._once(base, nearest), seconds_to_confirm(nearest, self._log.seconds_left)
        return confirmation_settings(baseline, nearest, base, once, seconds)

    def _has_time_for(self, baseline: PlanProfile, base: Sequence[Choice]) -> bool:
        nearest = self._profiles.nearest(base, baseline)
        seconds = seconds_to_confirm(nearest, self._log.seconds_left)
        return confirmation_seconds(baseline, nearest, base, once=self._once(base, nearest)) < seconds

    def _seconds_to_end(self, baseline: PlanProfile, base: Sequence[Choice], settings: ComparisonSettings) -> float:
        """From the start of the confirmation to the result."""
        nearest = self._profiles.nearest(base, baseline)
        once, steps, starts = self._once(base, nearest), settings.steps, settings.starts
        confirmed = confirmation_seconds(baseline, nearest, base, once=once, steps=steps, starts=starts)
        return seconds_to_result(nearest, confirmed)

    def _once(self, base: Sequence[Choice], profile: PlanProfile) -> float:
        """Seconds that a process of this plan pays once, such as for compiling, beyond those of the profile: by the
        trials of its choices."""
        beyond = profile.start_seconds + profile.length.process_seconds
        trials = [self._log.last_trial(choice) for choice in base]
        return max(0.0, *(tried.costs.one_off - beyond for tried in trials if tried and tried.costs), 0.0)

    def _show(self, found: Found) -> None:
        """For the report only: the plan's own budget. Where its arm fails, the plan stays proven."""
        if found.proven is None:
            return
        if self._profiles.seconds_to_measure(found.choices, found.profile) > LONG_PROFILE_SECONDS:
            self._log.report(Doing(what="a part of the report is missing: no time to profile the plan", stays=True))
            return
        self._log.report(Doing(what="profiling the plan"))
        try:
            self._log.keep(self._profiles.measured(found.choices).budget)
        except (ArmFailed, InvalidMeasurement) as failure:
            self._log.report(Doing(what=f"a part of the report is missing: {failure}"))
