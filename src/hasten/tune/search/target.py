"""Choices that change what is learned, judged by the time to the target: what the job itself comes to at its end.

Steps that learn something else cannot be compared step by step, nor can two runs by their ends, which are worth
different things. What can be compared is how long each takes to the same result. So the target of a seed is the result
that the plan without the choice has at the end of its planned run from that seed, and what counts are the seconds to
the first evaluation that is at least as good (evaluated.py says which seconds). Whoever never gets there within the
planned run has lost, however fast it began.

1. One whole run of each choice, from the job's own seed, on top of the plan so far. Who is no sooner there leaves.
2. The best two run from five more seeds, beside the plan without them and in turns: A B C, then C B A. The seed that
   chose them is not among these, for the luckiest of many is lucky there. A choice is kept when it got there from every
   seed, and was sooner beyond the spread of the five ratios, by Student's t.
3. The winner joins the plan, and the next best is tried on top of it. The target stays what it was.

What makes it a gain is that the run then ends at the target, so the plan says that as well (`stop_at`), with the target
of the job's own seed. Where nothing has joined, that alone is judged: a plan that comes to its last result before its
end, from five seeds again, has no need of what follows. A job that stops early by itself is left to that.

Any evaluation can be at the target by luck, and the first one that is there was looked for. Both sides of a pair have
that luck alike, so the ratio is fair. That a model is worth its result to the last digit, on the data that ended its
training, nobody can promise; nor does early stopping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.trials import Doing, Rates, Reached, Tried
from hasten.tune.proof.course import Aim, Arrival, Course, aim_of, trained
from hasten.tune.proof.time_to_target import Pair, reached, verdict
from hasten.tune.search.candidates import Left, changes_training, plan_of, with_choice
from hasten.tune.search.plan_profile import Look
from hasten.tune.search.search_log import Ledger
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed

PAIRS = 5
FURTHER = 2  # choices that are trained from more than one seed, of those that were sooner from the first
MOST_ROUNDS = 3
STOP_AT = "stop_at"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gained:
    """choices: of the whole plan; the last one ends the run at its target. reached: of each choice that joined."""

    choices: tuple[Choice, ...]
    reached: tuple[Reached, ...]


def judge_training(
    arms: Arms, ledger: Ledger, look: Look, base: tuple[Choice, ...], won: Callable[[Gained], None]
) -> None:
    """Try what may change training on top of a plan that is proven, as far as the ceiling allows it.

    won: is told every plan that is sooner at its target, the best last, so that an interruption loses none.
    """
    if ledger.options.ceiling < Preserves.TRAINING:
        return
    only = ledger.options.only
    proposed = [choice for choice in look.proposed if only is None or choice.technique in only]
    choices = [choice for choice in proposed if changes_training(choice) and with_choice(base, choice) is not None]
    ends = only is None or STOP_AT in only
    if not (choices or ends):
        return
    try:
        aim = aim_of(arms, plan_of(base))
    except ArmFailed as failure:
        _leave(ledger, choices, base, f"there is no target: {failure.fate.value}: {failure.what}")
        return
    if aim.refused is not None:
        _leave(ledger, choices, base, aim.refused)
        return
    contest = Contest(
        arms=arms,
        ledger=ledger,
        aim=aim,
        first_seed=look.surveyed.seed,
        steps=look.length.steps,
        run_seconds=look.run_seconds,
    )
    gained = list[Gained]()

    def joins(found: Gained) -> None:
        gained.append(found)
        won(found)

    with suppress(ArmFailed):  # of the plan itself, which its choices have as their reason
        if not contest.rounds(base, choices, joins) and ends and not aim.stops:
            contest.ends_early(base, joins)
    if gained:
        _keep_rates(arms, ledger, gained[-1].choices)


def _keep_rates(arms: Arms, ledger: Ledger, choices: tuple[Choice, ...]) -> None:
    """For the report, in place of those of the plan without them; where that fails it shows none that are wrong."""
    try:
        with arms.start("rates", plan_of(choices)) as arm:
            traced = arm.ask("rates")
    except ArmFailed as failure:
        ledger.tell(Doing(what=f"a part of the report is missing: {failure}"))
        traced = {"steps": (), "rates": (), "momenta": ()}
    ledger.keep(Rates(**{name: tuple(values) for name, values in traced.items()}))


@dataclass(kw_only=True, slots=True)
class Contest:
    """All runs of one search. run_seconds: of a whole one, as far as that is known; targets: by seed."""

    arms: Arms
    ledger: Ledger
    aim: Aim
    first_seed: int
    steps: int
    run_seconds: float
    targets: dict[int, float] = field(default_factory=dict[int, float])
    _whole: dict[int, Course] = field(default_factory=dict[int, Course])  # of the plan that all choices are added to
    _to_go: int = 0

    def rounds(self, base: tuple[Choice, ...], choices: Sequence[Choice], won: Callable[[Gained], None]) -> int:
        """How many choices have joined. Raises ArmFailed when the base fails."""
        joined, before = tuple[Reached, ...](), None
        for _ in range(MOST_ROUNDS if choices else 0):
            try:
                sooner = self._sooner(base, choices, before)
                best = self._best(base, [choice for choice, _ in sooner[:FURTHER]])
            except ArmFailed as failure:
                _leave(self.ledger, choices, base, f"the plan without it {failure.fate.value}: {failure.what}")
                raise
            if best is None:
                choices = [choice for choice, _ in sooner[FURTHER:]]
                break
            before = next(arrival for choice, arrival in sooner if choice is best.choice)
            others = [choice for choice, _ in sooner if choice.technique != best.choice.technique]
            rivals = [choice for choice, _ in sooner[FURTHER:] if choice.technique == best.choice.technique]
            _leave(self.ledger, rivals, base, f"it was sooner from one seed, and {best.choice} was sooner still")
            base, joined, choices = _joined(base, best.choice), (*joined, best), others
            won(Gained(choices=(*base, self._end()), reached=joined))
            if not choices:
                break
        _leave(self.ledger, choices, base, "it was sooner from one seed, and others were tried from more in its place")
        return len(joined)

    def ends_early(self, base: tuple[Choice, ...], won: Callable[[Gained], None]) -> None:
        """Judge the target alone: the base up to there beside itself up to its end. Raises ArmFailed if it fails."""
        self._to_go, pairs = 1 + PAIRS - len(self._whole), list[Pair]()
        try:
            for seed in range(self.first_seed, self.first_seed + 1 + PAIRS):
                if seed not in self._whole:
                    self._arrival_of_base(self._run(base, None, seed), seed)
                pairs.append(self._pair(self._whole[seed].end, self._whole[seed], seed))
                if pairs[0].ratio == 1:
                    break
        except ArmFailed as failure:
            self._note_failure(self._end(), base, failure)
            raise
        record = reached(self._end(), base, self.aim, pairs[1:] or pairs)
        self._note(record)
        if record.kept:
            won(Gained(choices=(*base, record.choice), reached=(record,)))

    def _end(self) -> Choice:
        """The choice that ends the run at the target; it has none before the first run is over."""
        target, options = self.targets.get(self.first_seed), dict[str, Value]()
        if target is not None:
            options["at_least" if self.aim.higher_is_better else "at_most"] = target
        return Choice(technique=STOP_AT, value=self.aim.metric, preserves=Preserves.TRAINING, options=options)

    def _sooner(
        self, base: tuple[Choice, ...], choices: Sequence[Choice], before: Arrival | None
    ) -> list[tuple[Choice, Arrival]]:
        """Those that are sooner at the target of the job's own seed, the soonest first.

        before: when the base is there, None where it has not run. Raises ArmFailed when the base fails."""
        seed = self.first_seed
        self._to_go = (before is None) + len(choices) + PAIRS * (1 + min(len(choices), FURTHER))
        if before is None:
            before = self._arrival_of_base(self._run(base, None, seed), seed)
        found = list[tuple[Choice, Arrival]]()
        for choice in choices:
            try:
                course = self._run(base, choice, seed)
            except ArmFailed as failure:
                self._note_failure(choice, base, failure)
                continue
            pair = self._pair(before, course, seed)
            record = reached(choice, base, self.aim, [pair])
            if pair.after is not None and pair.ratio > 1:
                self.ledger.keep(record)
                found.append((choice, pair.after))
            else:
                self._note(record)
        return sorted(found, key=lambda each: each[1].seconds)

    def _best(self, base: tuple[Choice, ...], choices: Sequence[Choice]) -> Reached | None:
        """The one that is most times as soon at the target, of those that are so beyond doubt.

        Raises ArmFailed when the base fails."""
        running, found = {str(choice): (choice, list[Pair]()) for choice in choices}, list[Reached]()
        for number in range(PAIRS):
            if not running:
                break
            seed, self._to_go = self.first_seed + 1 + number, (PAIRS - number) * (1 + len(running))
            order = [None, *(choice for choice, _ in running.values())]
            courses, before = self._in_turn(base, order if number % 2 == 0 else order[::-1], seed)
            for name, (choice, pairs) in list(running.items()):
                course = courses[name]
                if isinstance(course, ArmFailed):
                    self._note_failure(choice, base, course)
                    del running[name]
                    continue
                pairs.append(self._pair(before, course, seed))
                if not pairs[-1].whole or len(pairs) == PAIRS:
                    found.append(reached(choice, base, self.aim, pairs))
                    self._note(found[-1])
                    del running[name]
        return max((record for record in found if record.kept), key=_ratio, default=None)

    def _in_turn(
        self, base: tuple[Choice, ...], order: Sequence[Choice | None], seed: int
    ) -> tuple[dict[str, Course | ArmFailed], Arrival | None]:
        """One run of each, None being the base: those of the choices by name, and when the base is at the target.

        Raises ArmFailed when the base fails."""
        courses = dict[str, Course | ArmFailed]()
        for choice in order:
            try:
                courses[str(choice)] = self._run(base, choice, seed)
            except ArmFailed as failure:
                if choice is None:
                    raise
                courses[str(choice)] = failure
        plain = courses.pop(str(None))
        assert isinstance(plain, Course)
        return courses, self._arrival_of_base(plain, seed)

    def _pair(self, before: Arrival | None, course: Course, seed: int) -> Pair:
        target = self.targets[seed]
        return Pair(seed=seed, target=target, before=before, after=course.arrival(self.aim, target))

    def _arrival_of_base(self, course: Course, seed: int) -> Arrival | None:
        if seed not in self.targets:  # then it was trained to its end
            assert course.result is not None
            self.targets[seed], self.run_seconds, self._whole[seed] = course.result, course.end.seconds, course
        return course.arrival(self.aim, self.targets[seed])

    def _run(self, base: tuple[Choice, ...], choice: Choice | None, seed: int) -> Course:
        """choice: None for the base itself. Raises ArmFailed."""
        plan = plan_of(base if choice is None else _joined(base, choice))
        name = "the plan without them" if choice is None else str(choice)
        told = f"time to the target, seed {seed}: {name}"

        def tell(steps: int) -> None:
            left = (self._to_go - steps / max(self.steps, 1)) * self.run_seconds
            self.ledger.tell(Doing(what=told, done=steps, whole=self.steps, seconds_left=max(left, 0.0)))

        run = partial(trained, self.arms, plan, self.aim, seed, self.targets.get(seed), tell, called=name)
        try:
            return self.arms.other_programs.undisturbed(run)
        finally:
            self._to_go -= 1

    def _note(self, record: Reached) -> None:
        self.ledger.keep(record)
        tried = Tried(choice=record.choice, on=record.on, verdict=verdict(record), reason=record.sentence)
        self.ledger.note(tried)

    def _note_failure(self, choice: Choice, base: tuple[Choice, ...], failure: ArmFailed) -> None:
        reason = f"{failure.fate.value}: {failure.what}"
        self.ledger.note(Tried(choice=choice, on=base, verdict="failed", reason=reason))


def _ratio(record: Reached) -> float:
    return 0.0 if record.speedup is None else record.speedup.ratio


def _joined(base: tuple[Choice, ...], choice: Choice) -> tuple[Choice, ...]:
    return with_choice(base, choice) or base


def _leave(ledger: Ledger, choices: Iterable[Choice], base: tuple[Choice, ...], reason: str) -> None:
    ledger.leave([Left(choice=choice, reason=reason) for choice in choices], base)
