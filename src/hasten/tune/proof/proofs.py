"""What a search proves of the choices that won, before a plan is made of them.

Each is put to the proof of its own claim, and what passes has passed together, as the plan will have it:

1. What claims bits is compared by its losses, to the last bit, over two epochs (by_bits.py).
2. What claims to be equal up to rounding is proven by its gradients (by_gradients.py).
3. What claims to leave the statistics alone is compared by the losses of short runs, and with it what claims rounding
   where the job has no gradients to judge (by_losses.py).

Where a choice falls, its technique is not lost with it: the next fastest of its values, of those that were faster
beside the same plan, takes its place and is proven as well. It was not the fastest, and what it is worth in this plan
is for the confirmation to say, as of all others. What was given up: the values beside one that took a large lead left
before they were known, and are no runners-up of it.

Nothing is proven twice in one search, and nothing is believed of an earlier one: proofs are cheap beside trials, and a
file of trials is data that anybody may have written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hasten.facts.choice import Choice
from hasten.facts.trials import Proven, Tried
from hasten.tune.proof.by_bits import ByBits
from hasten.tune.proof.by_gradients import ByGradients
from hasten.tune.proof.by_losses import ByLosses, ShortRuns
from hasten.tune.proof.dropping import Choices
from hasten.tune.proof.gradient_proof import GradientProver
from hasten.tune.search.candidates import same, with_choice, without
from hasten.tune.search.search_log import Ledger
from hasten.tune.trials.arms import Arms


def prove(arms: Arms, base: Choices, ledger: Ledger, runs: ShortRuns) -> Choices:
    """The choices of a plan that preserve what they claim, with runners-up in the places of those that do not. Every
    proof is noted in the ledger. runs: how long losses may be compared."""
    # Bytes of the job's own numbers: a folder that others cannot read, gone with the block.
    with TemporaryDirectory(prefix="hasten-proof-", dir=arms.place) as folder:
        gradients = ByGradients(GradientProver(arms, Path(folder)), ledger.tell)
        bits, losses, lost = ByBits(arms, ledger.tell), ByLosses(arms, runs, ledger.tell), list[Choice]()
        while True:
            for judge in (bits, gradients):
                base, fallen = _sound(base, judge.prove(base), ledger)
                lost += fallen
            joined = with_runners_up(base, lost, ledger)
            if len(joined) == len(base):
                known = losses.curves
                base, fallen = _sound(base, losses.prove(base, gradients.unjudged), ledger)
                lost += fallen
                if losses.curves is not None and losses.curves is not known:
                    ledger.keep(losses.curves)
                joined = with_runners_up(base, fallen, ledger) if losses.has_time else base
            if len(joined) == len(base):
                return base
            base = joined


def _sound(base: Choices, proofs: Sequence[Proven], ledger: Ledger) -> tuple[Choices, list[Choice]]:
    """What is left of the base, and what has fallen."""
    for proof in proofs:
        if proof not in ledger.proofs:
            ledger.note(proof)
    fallen = [choice for choice in base if not ledger.is_sound(choice)]
    return without(base, *fallen), fallen


def with_runners_up(base: Choices, lost: Sequence[Choice], ledger: Ledger) -> Choices:
    """The base with a choice more for each technique that it has lost to a proof, where one can take its place."""
    for choice in lost:
        if any(choice.technique == each.technique for each in base):
            continue
        ways = (with_choice(base, rival) for rival in rivals(choice, ledger))
        base = next((way for way in ways if way is not None), base)
    return base


def rivals(lost: Choice, ledger: Ledger) -> list[Choice]:
    """The other values of a technique that were faster beside the same plan and have failed no proof, the fastest
    first."""
    faster = [each for each in ledger.tried if each.verdict == "faster" and each.choice.technique == lost.technique]
    last = next((each for each in reversed(faster) if same(each.choice, lost)), None)
    if last is None:
        return []
    beside = [each for each in faster if _is_beside(each, last.on) and ledger.is_sound(each.choice)]
    return [each.choice for each in sorted(beside, key=_ratio, reverse=True)]


def _is_beside(tried: Tried, base: Sequence[Choice]) -> bool:
    return len(tried.on) == len(base) and all(any(same(one, other) for other in base) for one in tried.on)


def _ratio(tried: Tried) -> float:
    return tried.speedup.ratio if tried.speedup is not None else 0.0
