"""The trials of a round: its choices in comparisons of a few, each beside the same plan, as far as there is time.

The most promising are tried first. A choice with a large lead ends its comparison, and those after it. The others are
tried only while there is also time to prove and to confirm what was faster so far. For what was faster, a search may
end a little later. What an earlier search has found out on the same plan is taken from its records.

The first comparison is made whatever the time, unless even what gains much could not be proven and confirmed before
the search ends far too late. Where a step takes longer than a window, a comparison ends when its seconds are over.

Where the base differs from itself in a second process, the intervals of its comparison are widened by that. What then
only looks faster can join at the end of the rounds (rounds.py), and is measured again by the confirmation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from hasten.facts.choice import Choice
from hasten.facts.plan import Speedup
from hasten.facts.trials import Doing, Noise, Plain, Tried, beside_noise, is_gain
from hasten.measure.paired_timing import early_speedup
from hasten.tuning.search.bounds import is_counted
from hasten.tuning.search.candidates import (
    COMPILE_GAIN,
    COMPILE_SECONDS,
    EVALUATION_ALONE,
    OUT_OF_TIME,
    joined,
    plan_of,
    with_choice,
)
from hasten.tuning.search.comparison import WINDOW_SECONDS, Compared, ComparisonSettings, Entry, compare_arms, is_known
from hasten.tuning.search.confirmation import AGAIN, PLAIN
from hasten.tuning.search.expected_seconds import comparison_seconds, end_seconds, repeats_seconds
from hasten.tuning.search.objective import WORTH_SEEING, costs, interrupted_alike, pooled, speedup
from hasten.tuning.search.plan_profile import PlanProfile
from hasten.tuning.search.search_log import SearchLog, ratio_of
from hasten.tuning.trials.arms import Arms, Limits

IN_A_COMPARISON = 6  # candidates that share the windows of one base
IN_THE_FIRST_COMPARISON = 4  # fewer, as one of the most promising is the likeliest to have a large lead
CONTROLS = 2  # the base, and in the first comparison the base once more
LATER = 0.2  # of the time that was asked for, by which a search may end later
SLOW_START = 3.0  # of how many starts of the base an arm may take the time
LATE_SECONDS = 240.0  # that the end of a search whose time is over may take
LONG_WINDOWS = 2 * WINDOW_SECONDS  # from which on a comparison has a time limit
LEAD = 1.3  # a speed-up by which all later trials take so much less time that the choice joins before them


@dataclass(kw_only=True, slots=True)
class RoundTrials:
    """baseline: its profile, with the step of the last comparison that it was the base of."""

    arms: Arms
    log: SearchLog
    baseline: PlanProfile

    def try_all(
        self, profile: PlanProfile, base: tuple[Choice, ...], choices: Sequence[Choice], *, in_time: bool = True
    ) -> list[Tried]:
        """The trials of all that there is time for, up to one with a large lead. profile: of the job under the base.

        Raises ArmFailed when the base fails."""
        results, new = list[Tried](), list[Choice]()
        for choice in choices:
            known = self.log.remembered(choice, base)
            if known is None:
                new.append(choice)
            else:
                self.log.add(known)
                results.append(known)
        training = [choice for choice in new if choice.technique not in EVALUATION_ALONE]
        evaluating = [choice for choice in new if choice.technique in EVALUATION_ALONE]
        if not in_time:
            always = self._provable(profile, base, new, COMPILE_GAIN)
        else:
            always = [] if self.log.comparisons else self._whatever_the_time(profile, base, new)
        for waiting in (training, evaluating):
            while waiting and not (in_time and self.has_lead(results)):
                group = self._next(profile, joined(base, self.log.winners(results)), waiting, always)
                if not group:
                    break
                waiting = [choice for choice in waiting if choice not in group]
                results += self._compare(profile, base, group, in_time=in_time)
            if not self.has_lead(results):
                self.log.skip([(each, OUT_OF_TIME) for each in waiting], base)
        return results

    def has_lead(self, results: Sequence[Tried]) -> bool:
        faster = [tried for tried in results if tried.verdict == "faster" and ratio_of(tried) >= LEAD]
        return any(self.log.is_sound(tried.choice) for tried in faster)

    def _next(
        self, profile: PlanProfile, found: tuple[Choice, ...], waiting: Sequence[Choice], always: Sequence[Choice]
    ) -> list[Choice]:
        """The most promising ones, as many as fit beside each other and into the time. One whose proof takes too long
        lets others go before it. found: the base with what was faster on it."""
        most = IN_A_COMPARISON if self.log.comparisons else IN_THE_FIRST_COMPARISON
        most = min(most, max(profile.room - CONTROLS, 1))
        most, group = math.ceil(len(waiting) / math.ceil(len(waiting) / most)), list[Choice]()
        for choice in waiting:
            fits = any(choice is each for each in always)
            fits = fits or self._seconds_for(profile, found, [*group, choice]) < self.log.seconds_left
            if len(group) < most and fits:
                group.append(choice)
        return group

    def _compare(
        self, profile: PlanProfile, base: tuple[Choice, ...], group: Sequence[Choice], *, in_time: bool
    ) -> list[Tried]:
        """The first comparison of a search has the base a second time, which shows what no difference looks like."""
        evaluates = all(choice.technique in EVALUATION_ALONE for choice in group)
        plans = {str(choice): plan_of(with_choice(base, choice) or base) for choice in group}
        with_turns = {str(choice) for choice in group if profile.measures_turns(choice)}
        entries = [
            Entry(
                name=str(choice),
                plan=plans[str(choice)],
                same_steps=evaluates,
                same_turns=str(choice) not in with_turns,
                start_seconds=self._seconds_to_start(profile, choice, in_time=in_time),
            )
            for choice in group
        ]
        alike = Entry(name=PLAIN, plan=plan_of(base), same_turns=not with_turns)
        if not (self.log.comparisons or base or evaluates):
            entries.append(replace(alike, name=AGAIN, stays=True, same_turns=profile.length.has_long_turns))
        what = f"trying{', on top of ' + ', '.join(map(str, base)) if base else ''}"
        compiling = 0.0 if in_time else COMPILE_SECONDS
        self.log.report(Doing(what=what, to_end=compiling + self._seconds_for(profile, base, group)))
        self.log.comparisons += 1
        settings = ComparisonSettings(
            steps=1 if evaluates else profile.steps_in(WINDOW_SECONDS),
            resident=len(group) + CONTROLS <= profile.room,
            ends_all=_is_lead if in_time else None,
            seconds=self._seconds_of_repeats(profile, base, group, len(entries) + 1),
        )
        compared = compare_arms(self.arms, alike, entries, settings, profile.length, watching(self.log, what))
        if AGAIN in compared.measured:
            self.log.keep(Noise(speedup=_measured_speedup(AGAIN, compared, profile), window_steps=settings.steps))
        if not base and not evaluates:
            step = median(window.seconds_per_step for window in compared.base.windows)
            found = pooled(costs(compared.base, profile.length), self.baseline.costs)
            if AGAIN in compared.measured:
                found = pooled(costs(compared.measured[AGAIN], profile.length), found)
            self.baseline = replace(self.baseline, step_seconds=step, costs=found)
            self.log.keep(Plain(costs=found))
        results = [_tried(choice, base, compared, profile) for choice in group]
        for tried in results:
            self.log.add(tried)
        return results

    # ── the time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _whatever_the_time(
        self, profile: PlanProfile, base: tuple[Choice, ...], choices: Sequence[Choice]
    ) -> list[Choice]:
        """Of a search's first choices: what treats a counted symptom, and the most promising one; of those, what could
        be proven and confirmed if it had a lead."""
        bounds = profile.bounds()
        counted = [choice for choice in choices[:1] if is_counted(choice, bounds)]
        first = [*counted, *[choice for choice in choices if not is_counted(choice, bounds)][:1]]
        provable = self._provable(profile, base, first, LEAD)
        if first and not provable:
            end = min(self._end_seconds_with(profile, base, each, LEAD) for each in first)
            self.log.needed_seconds = self.log.seconds + comparison_seconds(profile, choices, CONTROLS) + end
        return provable

    def _provable(
        self, profile: PlanProfile, base: tuple[Choice, ...], choices: Sequence[Choice], gain: float
    ) -> list[Choice]:
        """Those that could be proven and confirmed before the search ends far too late, if they were so much faster."""
        most = max(self.log.seconds_left, LATE_SECONDS)
        return [each for each in choices if self._end_seconds_with(profile, base, each, gain) <= most]

    def _end_seconds_with(self, profile: PlanProfile, base: tuple[Choice, ...], choice: Choice, gain: float) -> float:
        """If it were so much faster."""
        faster = replace(profile, step_seconds=profile.step_seconds / gain)
        return self.end_seconds(faster, with_choice(base, choice) or base)

    def _seconds_to_start(self, profile: PlanProfile, choice: Choice, *, in_time: bool) -> float:
        """That a choice's process may take: to start as the base does, and beyond that no more than the choice can save
        in the planned run. Of a search's own time, no more than the search was given."""
        bound = profile.bounds().get(choice.technique)
        most_gain = COMPILE_GAIN if not in_time else math.inf if bound is None else bound.most_gain
        saved = profile.run_seconds * (1 - 1 / most_gain)
        if in_time:
            saved = min(saved, self.log.options.seconds)
        return min(SLOW_START * profile.arm_start_seconds + saved, Limits().window_seconds)

    def _seconds_of_repeats(
        self, profile: PlanProfile, base: tuple[Choice, ...], group: Sequence[Choice], arms: int
    ) -> float:
        """That the repeats of a comparison may take: as many as are expected, and what the search can spare."""
        if profile.window_seconds <= LONG_WINDOWS:
            return math.inf
        expected = repeats_seconds(profile, arms)
        return max(expected, self.log.seconds_left - self._seconds_for(profile, base, group) + expected)

    def _seconds_for(self, profile: PlanProfile, found: tuple[Choice, ...], group: Sequence[Choice]) -> float:
        """Of a comparison, and of the end after it."""
        seconds = comparison_seconds(profile, group, 1 if self.log.comparisons else CONTROLS)
        return seconds + self.longest_end(profile, found, group)

    def longest_end(self, profile: PlanProfile, found: tuple[Choice, ...], group: Sequence[Choice]) -> float:
        """Of what was found with any one of these; where several are faster, those join that there is time for."""
        return max(self.end_seconds(profile, with_choice(found, choice) or found) for choice in group)

    def ends_soon_enough(self, profile: PlanProfile, choices: Sequence[Choice]) -> bool:
        """With choices that were faster: a gain that was found is worth some seconds more than were asked for."""
        return self.end_seconds(profile, choices) < self.log.seconds_left + LATER * self.log.options.seconds

    def has_time_to_end(self, profile: PlanProfile, choices: Sequence[Choice]) -> bool:
        return self.end_seconds(profile, choices) < self.log.seconds_left

    def end_seconds(self, profile: PlanProfile, choices: Sequence[Choice]) -> float:
        return end_seconds(self.baseline, profile, choices, self.log.options.seconds)


def watching(log: SearchLog, what: str) -> Callable[[int, int, dict[str, float]], None]:
    """Reports the progress of a comparison."""

    def watch(done: int, whole: int, ratios: dict[str, float]) -> None:
        log.report(Doing(what=what, done=done, whole=whole if done else 0, ratios=ratios))

    return watch


def _tried(choice: Choice, base: tuple[Choice, ...], compared: Compared, profile: PlanProfile) -> Tried:
    name = str(choice)
    if name in compared.failed:
        return Tried(choice=choice, on=base, verdict="failed", reason=compared.failed[name].reason)
    found = _speedup_of(name, compared, profile)
    seconds = costs(interrupted_alike(compared.base, compared.measured[name], profile.length)[1], profile.length)
    verdict = "faster" if is_gain(found) else "slower" if found.high < 1 / WORTH_SEEING else "no difference"
    unknown = name in compared.early and not (is_gain(found) or is_known(compared.early[name]))
    return Tried(
        choice=choice, on=base, verdict=verdict, reason=f"{found}", speedup=found, costs=seconds, cut_short=unknown
    )


def _speedup_of(name: str, compared: Compared, profile: PlanProfile) -> Speedup:
    """Beside the noise of its comparison, where that is known."""
    found = _measured_speedup(name, compared, profile)
    if AGAIN not in compared.measured:
        return found
    return beside_noise(found, _measured_speedup(AGAIN, compared, profile))


def _measured_speedup(name: str, compared: Compared, profile: PlanProfile) -> Speedup:
    if name in compared.early:
        return early_speedup(compared.early[name])
    return speedup(compared.base, compared.measured[name], profile.length)


def _is_lead(ratios: Sequence[float]) -> bool:
    found = early_speedup(ratios)
    return is_gain(found) and found.ratio >= LEAD
