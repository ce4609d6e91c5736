"""By the losses of short runs over a few seeds: what claims equal statistics. A loss that falls faster is harm as well,
as something else is trained than the claim promises. So is a first step that is another one (first_step.py). `hasten
prove loss` trains to the end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hasten.errors import InvalidMeasurement
from hasten.facts.choice import Preserves
from hasten.facts.trials import Curves, Doing, Proven
from hasten.tuning.proof.answers import Answer, Choices, Report, claiming, sort_out
from hasten.tuning.proof.loss_proof import PLAIN, paired_curves
from hasten.tuning.search.candidates import changes_training, plan_of, without
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import ArmFailed

SEEDS, FEWEST_STEPS = 3, 5
ALSO_BETTER = "; a loss that falls faster is no proof either: something else is trained"


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
        return Answer(
            passes=passes,
            reason=reason,
            by_losses=True,
            inconclusive=inconclusive,
            unharmed=curves.unharmed,
            curves=curves,
        )

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
