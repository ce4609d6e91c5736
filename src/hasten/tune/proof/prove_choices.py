"""Proves the choices that won, before a plan is made of them.

Each is proven by its own claim (claim_proofs.py), and what passes has passed together, as the plan will have it. Where
a choice fails, the next fastest value of its technique, of those that were faster beside the same plan, takes its place
and is proven as well. No proof is taken from an earlier search: a file of trials is data that anybody may have written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hasten.facts.choice import Choice
from hasten.facts.trials import Proven, Tried
from hasten.tune.proof.claim_proofs import ByBits, ByGradients, ByLosses, GradientProver, ShortRuns
from hasten.tune.proof.dropping import Choices
from hasten.tune.search.candidates import same, same_choices, with_choice, without
from hasten.tune.search.search_log import SearchLog
from hasten.tune.trials.arms import Arms


def prove(arms: Arms, base: Choices, log: SearchLog, runs: ShortRuns) -> Choices:
    """The choices of a plan that preserve what they claim, with runners-up in the places of those that do not. Every
    proof is added to the log."""
    # Bytes of the job's own numbers: a folder that others cannot read, removed with the block.
    with TemporaryDirectory(prefix="hasten-proof-", dir=arms.place) as folder:
        gradients = ByGradients(GradientProver(arms, Path(folder)), log.report)
        bits, losses, lost = ByBits(arms, log.report), ByLosses(arms, runs, log.report), list[Choice]()
        while True:
            for judge in (bits, gradients):
                base, failed = _sound(base, judge.prove(base), log)
                lost += failed
            joined = with_runners_up(base, lost, log)
            if len(joined) == len(base):
                known = losses.curves
                base, failed = _sound(base, losses.prove(base, gradients.unjudged), log)
                lost += failed
                if losses.curves is not None and losses.curves is not known:
                    log.keep(losses.curves)
                joined = with_runners_up(base, failed, log)
            if len(joined) == len(base):
                return base
            base = joined


def _sound(base: Choices, proofs: Sequence[Proven], log: SearchLog) -> tuple[Choices, list[Choice]]:
    """What is left of the base, and what has failed."""
    for proof in proofs:
        if proof not in log.proofs:
            log.add(proof)
    failed = [choice for choice in base if not log.is_sound(choice)]
    return without(base, *failed), failed


def with_runners_up(base: Choices, lost: Sequence[Choice], log: SearchLog) -> Choices:
    """The base with one choice more for each technique that it has lost to a proof, where one can take its place."""
    for choice in lost:
        if any(choice.technique == each.technique for each in base):
            continue
        plans = (with_choice(base, rival) for rival in rivals(choice, log))
        base = next((plan for plan in plans if plan is not None), base)
    return base


def rivals(lost: Choice, log: SearchLog) -> list[Choice]:
    """The other values of a technique that were faster beside the same plan and have failed no proof, the fastest
    first."""
    faster = [each for each in log.tried if each.verdict == "faster" and each.choice.technique == lost.technique]
    last = next((each for each in reversed(faster) if same(each.choice, lost)), None)
    if last is None:
        return []
    beside = [each for each in faster if same_choices(each.on, last.on) and log.is_sound(each.choice)]
    return [each.choice for each in sorted(beside, key=_ratio, reverse=True)]


def _ratio(tried: Tried) -> float:
    return tried.speedup.ratio if tried.speedup is not None else 0.0
