"""By gradients: what claims to be equal up to rounding is judged together with everything that claims bits, and without
what claims less."""

from __future__ import annotations

from collections.abc import Callable

from hasten.facts.choice import Preserves
from hasten.facts.plan import Plan
from hasten.facts.trials import Doing, Proven
from hasten.tuning.proof.answers import Answer, Choices, Report, claiming, listed, sort_out
from hasten.tuning.search.candidates import is_proven_by_bits, plan_of


def by_gradients(judge: Callable[[Plan], Answer], choices: Choices, report: Report) -> tuple[list[Proven], str | None]:
    """One record for each choice that claims to be equal up to rounding; and why no gradient can be judged, None where
    they can. Those that pass have passed together."""
    rounding = _claiming_rounding(choices)

    def proof(choices: Choices) -> Answer:
        report(Doing(what=f"proving the gradients of {listed(_claiming_rounding(choices))}"))
        return judge(plan_of(choices))

    if not rounding:
        return [], None
    proofs, answer = sort_out(proof, claiming(choices, Preserves.BITS, Preserves.ROUNDING), rounding)
    return proofs, answer.unjudged


def _claiming_rounding(choices: Choices) -> Choices:
    return tuple(each for each in claiming(choices, Preserves.ROUNDING) if not is_proven_by_bits(each))
