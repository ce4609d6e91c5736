"""Whether two arms have the same losses, to the last bit of every one.

Both begin at the first step with the same seeds, weights and order, so the k-th loss of one belongs to the k-th of the
other. A loss comes from all weights, and each update from a loss: after a few steps a bit that went astray anywhere in
the step is in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hasten.facts.choice import Choice
from hasten.facts.trials import Proven


@dataclass(frozen=True, kw_only=True, slots=True)
class Sameness:
    """unanswered: an arm failed on the way, so that nothing could be compared."""

    passes: bool
    reason: str
    unanswered: bool = False

    def of(self, choice: Choice) -> Proven:
        """The record of a choice that makes the difference between the two."""
        return Proven(choice=choice, passes=self.passes, reason=self.reason, unanswered=self.unanswered)


def same_losses(plain: Sequence[float], planned: Sequence[float]) -> Sameness:
    """plain, planned: losses of optimizer steps from the first one on; they are compared as far as both go."""
    compared = min(len(plain), len(planned))
    apart = next((step for step in range(compared) if plain[step].hex() != planned[step].hex()), None)
    if not compared:
        return Sameness(passes=False, reason="no step was taken by both, so nothing could be compared")
    if apart is None:
        return Sameness(passes=True, reason=f"the losses of {compared} steps are equal to the last bit")
    reason = f"claims to be bit-exact, but the loss of step {apart + 1} is {planned[apart]!r}, not {plain[apart]!r}"
    return Sameness(passes=False, reason=reason)
