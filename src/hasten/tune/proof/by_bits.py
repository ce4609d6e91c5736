"""Choices that claim to leave every bit as it is, put to the proof of their losses as the plan will have them.

Each was compared alone, in the windows of its trial, and those seldom reach a second epoch. Here all of them are
compared together with the plain job: over the first steps of the first epoch, and then over steps of the second one, so
that what acts at the turn of an epoch is seen as well. Both arms skip what lies between, which is what makes it cheap.

Where they fail together, dropping.py finds who has to go. What was given up: what shows in a later epoch alone, or only
after more of an epoch.
"""

from __future__ import annotations

from hasten.facts.choice import Preserves
from hasten.facts.trials import Doing, Proven
from hasten.tune.proof.by_gradients import Tell, claiming, listed
from hasten.tune.proof.dropping import Asked, Choices, Dropped, without_harmful
from hasten.tune.proof.sameness import Sameness, same_losses
from hasten.tune.search.candidates import plan_of, without
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed

STEPS_OF_AN_EPOCH = 4  # that are compared, of two epochs


class ByBits:
    """Proves plans of one job. The plain job is asked for its losses once."""

    def __init__(self, arms: Arms, tell: Tell) -> None:
        self._arms, self._tell = arms, tell
        self._asked = Asked(self._compared)
        self._plain: list[float] | None = None

    def prove(self, choices: Choices) -> list[Proven]:
        """One record for each choice that claims bits. Those that pass have passed together."""
        exact = claiming(choices, Preserves.BITS)
        if not exact:
            return []
        dropped = [] if self._asked.surely(exact).passes else without_harmful(self._asked, exact, exact)
        kept = without(exact, *(each.choice for each in dropped))
        return [*(self._asked.surely(kept).of(choice) for choice in kept), *map(_record, dropped)]

    def _compared(self, choices: Choices) -> Sameness:
        self._tell(Doing(what=f"comparing the losses with {listed(choices)}, bit by bit"))
        try:
            if self._plain is None:
                self._plain = self._losses("plain", ())
            return same_losses(self._plain, self._losses("planned", choices))
        except ArmFailed as failed:
            reason = f"its losses could not be compared: {failed.fate.value}: {failed.what}"
            return Sameness(passes=False, reason=reason, unanswered=True)

    def _losses(self, name: str, choices: Choices) -> list[float]:
        with self._arms.start(name, plan_of(choices)) as arm:
            return arm.ask("two epochs", steps=STEPS_OF_AN_EPOCH)["losses"]


def _record(dropped: Dropped[Sameness]) -> Proven:
    found = dropped.answer
    beside = f" (together with {listed(dropped.beside)})" if dropped.beside else ""
    return Sameness(passes=False, reason=f"{found.reason}{beside}", unanswered=found.unanswered).of(dropped.choice)
