"""Whether a choice that claims to be bit-exact is: every loss of its windows is the plain job's, to the last bit.

Both arms begin at the first step with the same seeds, weights and order, so the k-th loss of one belongs to the k-th of
the other. A loss comes from all weights, and each update from a loss: after a few steps a bit that went astray anywhere
in the step is in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.facts.choice import Choice
from hasten.facts.trials import Proven


def same_losses(choice: Choice, plain: Sequence[float], planned: Sequence[float]) -> Proven:
    """plain, planned: losses of optimizer steps from the first one on; they are compared as far as both go."""
    compared = min(len(plain), len(planned))
    apart = next((step for step in range(compared) if plain[step].hex() != planned[step].hex()), None)
    if not compared:
        return Proven(choice=choice, passes=False, reason="no step was taken by both, so nothing could be compared")
    if apart is None:
        return Proven(choice=choice, passes=True, reason=f"the losses of {compared} steps are equal to the last bit")
    return Proven(
        choice=choice,
        passes=False,
        reason=f"claims to be bit-exact, but the loss of step {apart + 1} is {planned[apart]!r}, not {plain[apart]!r}",
    )
