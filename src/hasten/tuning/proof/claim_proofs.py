"""Proves what the choices that won claim: bits, by losses; rounding, by gradients; equal statistics, by losses of short
runs. Whatever a choice claims, a script's recipe must stay: rates, modes, dropout, the order of samples. No proof is
taken from an earlier search: a file of trials is data that anybody may have written.

Two choices that pass alone can fail together, so a plan is proven as a whole. Where it fails, it is built up from the
first choice on, as the largest gain comes first, and those that fail beside the ones before are dropped. No plan is
proven twice.

By bits: all choices are compared with the baseline together, over the first steps of the first epoch and of the second
one, so that what acts between epochs is seen as well. A loss depends on all weights: after a few steps a bit that
changed anywhere is in all losses.

By gradients: together with everything that claims bits, and without what claims less. The baseline's references are
computed once in a search; every plan then costs one arm of eight steps (gradient_check.py). A plan that does not pass
is judged once more, on the next eight batches: where the job has kinks, an honest plan can flip one activation, but not
twice. A wrong gradient does not go away.

By losses: a loss that falls faster is harm as well, as something else is trained than the claim promises. `hasten prove
loss` trains to the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from hasten.errors import InvalidMeasurement
from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan
from hasten.facts.trials import Curves, Doing, Proven
from hasten.tuning.proof.loss_proof import PLAIN, paired_curves
from hasten.tuning.search.candidates import changes_training, is_proven_by_bits, plan_of, without
from hasten.tuning.search.search_log import SearchLog
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import ArmFailed

Choices = tuple[Choice, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a proof says of a plan; the fields of facts.trials.Proven but its choice, and in addition:

    curves: losses that were compared. unjudged: why no gradient of this job can be judged, whatever the plan. is_plans:
    whether another plan could have passed, and not the baseline failed.
    """

    passes: bool
    reason: str
    gradient_error: float | None = None
    bound: float | None = None
    by_losses: bool = False
    inconclusive: bool = False
    unanswered: bool = False
    curves: Curves | None = None
    unjudged: str | None = None
    is_plans: bool = True

    def of(self, choice: Choice, reason: str = "") -> Proven:
        """The record of one choice of the plan. reason: in place of the answer's own."""
        return Proven(
            choice=choice,
            passes=self.passes,
            reason=reason or self.reason,
            gradient_error=self.gradient_error,
            bound=self.bound,
            by_losses=self.by_losses,
            inconclusive=self.inconclusive,
            unanswered=self.unanswered,
        )


Proof = Callable[[Choices], Answer]
Recipe = Mapping[str, Sequence[str]]
"""What the steps of a script are made of: name -> its value in each step."""
UNKNOWN = "unknown"  # a value, which differs from none


class ProvesGradients(Protocol):
    """recipe_of: empty of a job, which hasten's own loop trains. Raises ArmFailed."""

    def prove(self, plan: Plan) -> Answer: ...

    def recipe_of(self, plan: Plan) -> Recipe: ...


def sort_out(proof: Proof, whole: Choices, among: Choices) -> tuple[list[Proven], Answer]:
    """One record for each choice among the whole that may be dropped; none where no gradient can be judged. And the
    answer of the plan with those that have passed together, or of the one that failed where none has."""
    answers = dict[frozenset[str], Answer]()

    def asked(choices: Choices) -> Answer:
        key = frozenset(map(str, choices))
        if key not in answers:
            answers[key] = proof(choices)
        return answers[key]

    answer = asked(whole)
    if answer.unjudged is not None:
        return [], answer
    if answer.passes or not answer.is_plans:
        return [answer.of(choice) for choice in among], answer
    kept, dropped = list[Choice](), dict[int, Proven]()
    for choice in among:
        one = asked(without(whole, *(each for each in among if not _is_in([*kept, choice], each))))
        if one.passes:
            kept.append(choice)
        else:
            beside = f"fails together with {listed(kept)}: " if kept and one.is_plans else ""
            dropped[id(choice)] = one.of(choice, f"{beside}{one.reason}")
    left = without(whole, *(choice for choice in among if id(choice) in dropped))
    passed = [choice for choice in among if _is_in(left, choice)]
    answer = asked(left) if passed else answer
    return [*(answer.of(choice) for choice in passed), *dropped.values()], answer


def claiming(choices: Choices, *claims: Preserves) -> Choices:
    return tuple(choice for choice in choices if choice.preserves in claims)


def listed(choices: Sequence[Choice]) -> str:
    return ", ".join(map(str, choices))


def _is_in(choices: Sequence[Choice], one: Choice) -> bool:
    return any(one is choice for choice in choices)


STEPS_OF_AN_EPOCH = 8  # whose losses are compared bit by bit, of two epochs
STEPS_OF_GRADIENTS = 8  # that the oracle is calibrated for
LIMIT_SECONDS = 600.0  # of these
SEEDS, FEWEST_STEPS = 3, 5  # of short runs
ALSO_BETTER = "; a loss that falls faster is no proof either: something else is trained"
Report = Callable[[Doing], None]


# ── by the recipe ───────────────────────────────────────────────────────────────────────────────────────────────────


def by_recipe(prover: ProvesGradients, choices: Choices, report: Report) -> list[Proven]:
    """One record for each choice that changes the recipe of the training. What the baseline changes itself does not
    count."""
    again = list[Recipe]()

    def failed(failure: ArmFailed, *, is_plans: bool) -> Answer:
        reason = f"its steps could not be compared: {failure.reason}"
        return Answer(passes=False, reason=reason, unanswered=True, is_plans=is_plans)

    def compared(choices: Choices) -> Answer:
        report(Doing(what=f"comparing the recipe of the training with {listed(choices)}"))
        try:
            planned = prover.recipe_of(plan_of(choices))
            if different_in(plain, planned) and not again:
                again.append(prover.recipe_of(Plan()))
        except ArmFailed as failure:
            return failed(failure, is_plans=True)
        own = set(different_in(plain, again[0])) if again else set[str]()
        found = next((why for name, why in different_in(plain, planned).items() if name not in own), None)
        return Answer(passes=found is None, reason=found or "the recipe of the training is the same")

    claimed = without(choices, *filter(changes_training, choices))
    if not claimed:
        return []
    try:
        plain = prover.recipe_of(Plan())
    except ArmFailed as failure:
        return [failed(failure, is_plans=False).of(choice) for choice in claimed]
    return [each for each in sort_out(compared, claimed, claimed)[0] if not each.passes] if plain else []


def different_in(plain: Recipe, planned: Recipe) -> dict[str, str]:
    """Of each name whose values differ, a sentence on the first step in which they do."""
    found = dict[str, str]()
    for name in sorted(plain.keys() | planned.keys()):
        steps = zip_longest(plain.get(name, ()), planned.get(name, ()), fillvalue="")
        for number, (before, after) in enumerate(steps, start=1):
            if before != after and UNKNOWN not in (before, after):
                where = f"{name}, in step {number}," if len(plain.get(name, ())) > 1 else name
                what = f"{where} is {after or 'nothing'} with it, not {before or 'nothing'}"
                found.setdefault(name, f"changes the recipe of the training: {what}")
    return found


# ── by bits ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def by_bits(arms: Arms, choices: Choices, report: Report) -> list[Proven]:
    """One record for each choice that claims bits. The baseline's losses are computed once; a second time where a plan
    has others."""
    plain, again = list[float](), list[float]()

    def losses(name: str, choices: Choices) -> list[float]:
        with arms.start(name, plan_of(choices)) as arm:
            return arm.ask("two epochs", steps=STEPS_OF_AN_EPOCH)["losses"]

    def compared(choices: Choices) -> Answer:
        report(Doing(what=f"comparing the losses with {listed(choices)}, bit by bit"))
        try:
            if not plain:
                plain.extend(losses("plain", ()))
            found = same_losses(plain, losses("planned", choices))
            if not found.passes and not again:
                again.extend(losses("the baseline again", ()))
            return found if found.passes else differs_from_itself(plain, again) or found
        except ArmFailed as failed:
            return Answer(passes=False, reason=f"its losses could not be compared: {failed.reason}", unanswered=True)

    exact = tuple(filter(is_proven_by_bits, choices))
    return sort_out(compared, exact, exact)[0] if exact else []


def same_losses(plain: Sequence[float], planned: Sequence[float]) -> Answer:
    """Whether losses of optimizer steps, from the first one on, are equal to the last bit, as far as both are given."""
    compared = min(len(plain), len(planned))
    if not compared:
        return Answer(passes=False, reason="no step was taken by both, so nothing could be compared")
    apart = first_difference(plain, planned)
    if apart is None:
        return Answer(passes=True, reason=f"the losses of {compared} steps are equal to the last bit")
    if math.isnan(plain[apart]):
        what = f"the baseline has no loss to compare in step {apart + 1}: it is NaN, or nothing was computed"
        return Answer(passes=False, reason=what, is_plans=False)
    losses = f"the loss of step {apart + 1} is {planned[apart]!r} with it, not {plain[apart]!r}"
    return Answer(passes=False, reason=f"claims to be bit-exact, but {losses}")


def differs_from_itself(plain: Sequence[float], again: Sequence[float]) -> Answer | None:
    """The answer of any plan where two runs of the baseline have other losses; None where they have the same."""
    apart = first_difference(plain, again)
    if apart is None:
        return None
    losses = f"the loss of step {apart + 1} is {plain[apart]!r} in one run of it, and {again[apart]!r} in another"
    return Answer(passes=False, reason=f"no bits can be compared, as the baseline has none: {losses}", is_plans=False)


def first_difference(one: Sequence[float], other: Sequence[float]) -> int | None:
    """The first step whose losses are not equal to the last bit; NaN is equal to nothing. None where all are."""
    pairs = zip(one, other, strict=False)
    return next((step for step, (a, b) in enumerate(pairs) if math.isnan(a) or a.hex() != b.hex()), None)


# ── by gradients ────────────────────────────────────────────────────────────────────────────────────────────────────


def by_gradients(prover: ProvesGradients, choices: Choices, report: Report) -> tuple[list[Proven], str | None]:
    """One record for each choice that claims to be equal up to rounding; and why no gradient can be judged, None where
    they can. Those that pass have passed together."""
    rounding = _claiming_rounding(choices)

    def proof(choices: Choices) -> Answer:
        report(Doing(what=f"proving the gradients of {listed(_claiming_rounding(choices))}"))
        return prover.prove(plan_of(choices))

    if not rounding:
        return [], None
    proofs, answer = sort_out(proof, claiming(choices, Preserves.BITS, Preserves.ROUNDING), rounding)
    return proofs, answer.unjudged


def _claiming_rounding(choices: Choices) -> Choices:
    return tuple(each for each in claiming(choices, Preserves.ROUNDING) if not is_proven_by_bits(each))


class GradientProver:
    """folder: an empty one, for what the baseline keeps: about 12 bytes for every number that is trained, times the
    steps. The caller removes it."""

    def __init__(self, arms: Arms, folder: Path, *, steps: int = STEPS_OF_GRADIENTS) -> None:
        self._arms, self._folder, self._steps = arms, folder, steps
        self._references = dict[int, Mapping[str, Any]]()  # by their first step

    def recipe_of(self, plan: Plan) -> Recipe:
        return {}

    def prove(self, plan: Plan) -> Answer:
        """Whether the plan's own steps have the gradients and updates of the baseline, up to rounding."""
        if refused := self._kept(0)["refused"]:
            return Answer(passes=False, reason=f"no gradient can be judged: {refused}", unjudged=refused)
        found = self._judged(plan, 0)
        if not found.passes and found.bound is not None and not self._kept(self._steps)["refused"]:
            again = self._judged(plan, self._steps)
            found = again if again.passes else found
        return found

    def _kept(self, first: int) -> Mapping[str, Any]:
        """What the baseline has kept of the steps from `first` on."""
        if first not in self._references:
            try:
                self._references[first] = self._ask(Plan(), "references", first=first, steps=self._steps)
            except ArmFailed as failed:
                self._references[first] = {"refused": f"the baseline {failed.reason}"}
        return self._references[first]

    def _judged(self, plan: Plan, first: int) -> Answer:
        """Without a bound where the plan's arm failed."""
        try:
            return Answer(**self._ask(plan, "gradients", kept=self._kept(first)))
        except ArmFailed as failed:
            return Answer(passes=False, reason=failed.reason)

    def _ask(self, plan: Plan, do: str, **fields: Any) -> dict[str, Any]:
        with self._arms.start(do, plan) as arm:
            return arm.ask(do, LIMIT_SECONDS, folder=str(self._folder), **fields)


# ── by losses ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortRuns:
    """steps: of each, FEWEST_STEPS at least."""

    first_seed: int
    steps: int


def by_losses(
    arms: Arms, runs: ShortRuns, choices: Choices, unjudged: str | None, report: Report
) -> tuple[list[Proven], Curves | None]:
    """One record for each choice that claims equal statistics, and for those that claim rounding where no gradient of
    the job can be judged. Those that pass have passed together. And the curves of the last plan that has passed, or
    else that has not.

    unjudged: why no gradient can be judged, None where they can.
    """
    seeds = range(runs.first_seed, runs.first_seed + SEEDS)

    def watch(done: int, whole: int) -> None:
        report(Doing(what=f"comparing losses over {SEEDS} seeds", done=done, whole=whole))

    def failed(reason: str, *, is_plans: bool) -> Answer:
        reason = f"its losses could not be compared: {reason}"
        return Answer(passes=False, reason=reason, by_losses=True, is_plans=is_plans)

    def compared(choices: Choices) -> Answer:
        watch(0, 0)
        try:
            curves = paired_curves(arms, plan_of(choices), seeds, max(runs.steps, FEWEST_STEPS), watch)
        except ArmFailed as failure:
            is_plans = failure.arm != PLAIN
            who = "with it the job" if is_plans else "the baseline"
            return failed(f"{who} {failure.reason}", is_plans=is_plans)
        except InvalidMeasurement as invalid:
            return failed(invalid.what, is_plans=False)
        passes, inconclusive = curves.verdict not in ("harmed", "better"), curves.verdict == "inconclusive"
        reason = f"{curves.sentence}{ALSO_BETTER if curves.verdict == 'better' else ''}"
        return Answer(passes=passes, reason=reason, by_losses=True, inconclusive=inconclusive, curves=curves)

    claims = (Preserves.STATISTICS,) if unjudged is None else (Preserves.ROUNDING, Preserves.STATISTICS)
    among = claiming(choices, *claims)
    if not among:
        return [], None
    proofs, answer = sort_out(compared, without(choices, *filter(changes_training, choices)), among)
    return [_with_unjudged(proof, unjudged) for proof in proofs], answer.curves


def _with_unjudged(proof: Proven, unjudged: str | None) -> Proven:
    if proof.choice.preserves is not Preserves.ROUNDING:
        return proof
    why = f"losses were compared because no gradient of this job can be judged: {unjudged}"
    return replace(proof, reason=f"{proof.reason}; {why}")


def prove(
    arms: Arms,
    base: Choices,
    log: SearchLog,
    runs: ShortRuns,
    prover: Callable[[Arms, Path], ProvesGradients] = GradientProver,
) -> Choices:
    """The choices of a plan that preserve what they claim. Every proof is added to the log. prover: makes what proves
    gradients, with an empty folder for its files."""
    # Bytes of the job's own numbers: a folder that others cannot read, removed with the block.
    with TemporaryDirectory(prefix="hasten-proof-", dir=arms.place) as folder:
        proves = prover(arms, Path(folder))
        base = _sound(base, by_recipe(proves, base, log.report), log)
        base = _sound(base, by_bits(arms, base, log.report), log)
        proofs, unjudged = by_gradients(proves, base, log.report)
    base = _sound(base, proofs, log)
    proofs, curves = by_losses(arms, runs, base, unjudged, log.report)
    base = _sound(base, proofs, log)
    if curves is not None:
        log.keep(curves)
    return base


def _sound(base: Choices, proofs: Sequence[Proven], log: SearchLog) -> Choices:
    """What is left of the base."""
    for proof in proofs:
        log.add(proof)
    return without(base, *(choice for choice in base if not log.is_sound(choice)))
