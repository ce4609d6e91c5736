"""By bits: all choices that claim them are compared with the baseline together, over the first steps of the first epoch
and of the second one, so that what acts between epochs is seen as well.

A loss depends on all weights: after a few steps a bit that changed anywhere is in all losses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hasten.facts.trials import Doing, Proven
from hasten.tuning.proof.answers import Answer, Choices, Report, listed, sort_out
from hasten.tuning.search.candidates import is_proven_by_bits, plan_of
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import ArmFailed

STEPS_OF_AN_EPOCH = 8  # whose losses are compared, of two epochs


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
