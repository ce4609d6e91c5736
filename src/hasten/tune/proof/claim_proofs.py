"""Proofs of what choices claim: bits, by losses; rounding, by gradients; equal statistics, by losses of short runs.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hasten.errors import InvalidMeasurement
from hasten.facts.choice import Preserves
from hasten.facts.plan import Plan
from hasten.facts.trials import Curves, Doing, Proven
from hasten.tune.proof.dropping import Answer, Asked, Choices, claiming, listed, sort_out
from hasten.tune.proof.loss_proof import paired_curves
from hasten.tune.proof.paired_runs import PLAIN
from hasten.tune.search.candidates import changes_training, is_proven_by_bits, plan_of, without
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed

STEPS_OF_AN_EPOCH = 4  # whose losses are compared bit by bit, of two epochs
STEPS_OF_GRADIENTS = 8  # that the oracle is calibrated for
LIMIT_SECONDS = 600.0  # of these
SEEDS, FEWEST_STEPS = 3, 5  # of short runs
Report = Callable[[Doing], None]


# ── by bits ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class ByBits:
    """Proves plans of one job. The baseline's losses are computed once."""

    def __init__(self, arms: Arms, report: Report) -> None:
        self._arms, self._report = arms, report
        self._asked = Asked(self._compared)
        self._plain: list[float] | None = None

    def prove(self, choices: Choices) -> list[Proven]:
        """One record for each choice that claims bits. Those that pass have passed together."""
        exact = tuple(filter(is_proven_by_bits, choices))
        return sort_out(self._asked, exact, exact).proofs if exact else []

    def _compared(self, choices: Choices) -> Answer:
        self._report(Doing(what=f"comparing the losses with {listed(choices)}, bit by bit"))
        try:
            if self._plain is None:
                self._plain = self._losses("plain", ())
            return same_losses(self._plain, self._losses("planned", choices))
        except ArmFailed as failed:
            return Answer(passes=False, reason=f"its losses could not be compared: {failed.reason}", unanswered=True)

    def _losses(self, name: str, choices: Choices) -> list[float]:
        with self._arms.start(name, plan_of(choices)) as arm:
            return arm.ask("two epochs", steps=STEPS_OF_AN_EPOCH)["losses"]


def same_losses(plain: Sequence[float], planned: Sequence[float]) -> Answer:
    """Whether losses of optimizer steps, from the first one on, are equal to the last bit, as far as both are given."""
    compared = min(len(plain), len(planned))
    if not compared:
        return Answer(passes=False, reason="no step was taken by both, so nothing could be compared")
    apart = next((step for step in range(compared) if plain[step].hex() != planned[step].hex()), None)
    if apart is None:
        return Answer(passes=True, reason=f"the losses of {compared} steps are equal to the last bit")
    reason = f"claims to be bit-exact, but the loss of step {apart + 1} is {planned[apart]!r}, not {plain[apart]!r}"
    return Answer(passes=False, reason=reason)


# ── by gradients ────────────────────────────────────────────────────────────────────────────────────────────────────


class ByGradients:
    """Proves plans of one job. unjudged: why no gradient of it can be judged, once that is known."""

    def __init__(self, prover: GradientProver, report: Report) -> None:
        self._prover, self._report = prover, report
        self._asked = Asked(self._proof)
        self.unjudged: str | None = None

    def prove(self, choices: Choices) -> list[Proven]:
        """One record for each choice that claims to be equal up to rounding; none where no gradient can be judged.
        Those that pass have passed together."""
        rounding = _claiming_rounding(choices)
        if not rounding or self.unjudged is not None:
            return []
        strict = claiming(choices, Preserves.BITS, Preserves.ROUNDING)
        self.unjudged = self._asked(strict).unjudged
        return sort_out(self._asked, strict, rounding).proofs if self.unjudged is None else []

    def _proof(self, choices: Choices) -> Answer:
        self._report(Doing(what=f"proving the gradients of {listed(_claiming_rounding(choices))}"))
        return self._prover.prove(plan_of(choices))


def _claiming_rounding(choices: Choices) -> Choices:
    return tuple(each for each in claiming(choices, Preserves.ROUNDING) if not is_proven_by_bits(each))


class GradientProver:
    """folder: an empty one, for what the baseline keeps: about 12 bytes for every number that is trained, times the
    steps. The caller removes it."""

    def __init__(self, arms: Arms, folder: Path, *, steps: int = STEPS_OF_GRADIENTS) -> None:
        self._arms, self._folder, self._steps = arms, folder, steps
        self._references = dict[int, Mapping[str, Any]]()  # by their first step

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


class ByLosses:
    """Compares plans of one job with it. curves: of the last plan that has passed, or else that has not."""

    def __init__(self, arms: Arms, runs: ShortRuns, report: Report) -> None:
        self._arms, self._runs, self._report = arms, runs, report
        self._asked = Asked(self._compared)
        self.curves: Curves | None = None

    def prove(self, choices: Choices, unjudged: str | None) -> list[Proven]:
        """One record for each choice that claims equal statistics, and for those that claim rounding where no gradient
        of the job can be judged. Those that pass have passed together.

        unjudged: why no gradient can be judged, None where they can.
        """
        claims = (Preserves.STATISTICS,) if unjudged is None else (Preserves.ROUNDING, Preserves.STATISTICS)
        among = claiming(choices, *claims)
        if not among:
            return []
        found = sort_out(self._asked, without(choices, *filter(changes_training, choices)), among)
        self.curves = found.answer.curves
        return [_with_unjudged(proof, unjudged) for proof in found.proofs]

    def _compared(self, choices: Choices) -> Answer:
        runs = self._runs
        seeds = range(runs.first_seed, runs.first_seed + SEEDS)

        def watch(done: int, whole: int) -> None:
            self._report(Doing(what=f"comparing losses over {SEEDS} seeds", done=done, whole=whole))

        def failed(reason: str, *, is_plans: bool) -> Answer:
            reason = f"its losses could not be compared: {reason}"
            return Answer(passes=False, reason=reason, by_losses=True, is_plans=is_plans)

        watch(0, 0)
        try:
            curves = paired_curves(self._arms, plan_of(choices), seeds, max(runs.steps, FEWEST_STEPS), watch)
        except ArmFailed as failure:
            is_plans = failure.arm != PLAIN
            who = "with it the job" if is_plans else "the baseline"
            return failed(f"{who} {failure.reason}", is_plans=is_plans)
        except InvalidMeasurement as invalid:
            return failed(invalid.what, is_plans=False)
        passes, inconclusive = curves.verdict not in ("harmed", "better"), curves.verdict == "inconclusive"
        return Answer(passes=passes, reason=curves.sentence, by_losses=True, inconclusive=inconclusive, curves=curves)


def _with_unjudged(proof: Proven, unjudged: str | None) -> Proven:
    if proof.choice.preserves is not Preserves.ROUNDING:
        return proof
    why = f"losses were compared because no gradient of this job can be judged: {unjudged}"
    return replace(proof, reason=f"{proof.reason}; {why}")
