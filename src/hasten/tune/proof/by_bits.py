"""Proves choices that claim to leave every bit unchanged, by the losses of the plan.

All of them are compared with the baseline together: over the first steps of the first epoch and of the second one, so
that what acts between epochs is seen as well. A loss depends on all weights: after a few steps a bit that changed
anywhere is in all losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hasten.facts.choice import Preserves
from hasten.facts.trials import Doing, Proven
from hasten.tune.proof.dropping import Answer, Asked, Choices, claiming, listed, sort_out, without_harmful
from hasten.tune.search.candidates import plan_of
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed

STEPS_OF_AN_EPOCH = 4  # that are compared, of two epochs


class ByBits:
    """Proves plans of one job. The baseline's losses are computed once."""

    def __init__(self, arms: Arms, report: Callable[[Doing], None]) -> None:
        self._arms, self._report = arms, report
        self._asked = Asked(self._compared)
        self._plain: list[float] | None = None

    def prove(self, choices: Choices) -> list[Proven]:
        """One record for each choice that claims bits. Those that pass have passed together."""
        exact = claiming(choices, Preserves.BITS)
        if not exact:
            return []
        found = sort_out(self._asked, exact, exact, without_harmful)
        proofs = [found.answer.of(choice) for choice in found.passed]
        for each in found.dropped:
            beside = f" (together with {listed(each.beside)})" if each.beside else ""
            proofs.append(each.answer.of(each.choice, f"{each.answer.reason}{beside}"))
        return proofs

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
