"""What a search found, as a plan with its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hasten.facts.choice import Choice
from hasten.facts.formatting import shortened
from hasten.facts.plan import Between, Plan, PlannedChoice, Proof, Rejected, Speedup, Total
from hasten.facts.trials import Confirmed, Proven, Surveyed, Tried, why_no_gain
from hasten.tuning.search.candidates import UNPROVEN, same
from hasten.tuning.search.objective import break_even_step
from hasten.tuning.search.target import TargetGain

LONGEST_REASON = 500  # characters; the trials have all of it


def plan_found(
    surveyed: Surveyed,
    proven: Confirmed | None,
    tried: Sequence[Tried],
    proofs: Sequence[Proven],
    gained: TargetGain | None = None,
) -> Plan:
    """The plan with its evidence, and with the reason for whatever it does not do.

    proven: the plan that was confirmed; None where none was. gained: what changes training and reaches the target
    sooner. The total stays that of the whole planned run: where the target is reached differs from run to run.
    """
    choices = () if proven is None else proven.choices
    choices = choices if gained is None else gained.choices
    left = _left(choices, tried)
    skipped = [each for each in left if each.verdict == "skipped" and not _failed(each, proofs)]
    return Plan(
        job=surveyed.fingerprint,
        machine=surveyed.proven_on,
        total=None if proven is None else _total(proven, surveyed.process_seconds),
        choices=tuple(_planned(choice, proven, proofs, gained) for choice in choices),
        rejected=tuple(_rejected(each, choices, proofs) for each in left if each not in skipped),
        not_tried=_not_tried(choices, skipped, surveyed.refused),
    )


def faster_and_rejected(plan: Plan, tried: Sequence[Tried]) -> list[Rejected]:
    """What was shown as faster in a round, and whose technique is not in the plan."""
    kept = {planned.choice.technique for planned in plan.choices}
    faster = [each.choice for each in tried if each.verdict == "faster" and each.choice.technique not in kept]
    return [
        each
        for each in plan.rejected
        if any((each.technique, each.value) == (choice.technique, choice.value) for choice in faster)
    ]


def _total(proven: Confirmed, process_seconds: float) -> Total:
    return Total(
        baseline_seconds=round(proven.plain.total, 3),
        planned_seconds=round(proven.planned_seconds, 3),
        one_off_seconds=round(proven.planned.one_off, 3),
        break_even_step=break_even_step(proven.plain, proven.planned),
        baseline_between=_rounded(proven.plain.between),
        planned_between=_rounded(proven.planned_between),
        process_seconds=round(process_seconds, 3),
    )


def _rounded(between: Between | None) -> Between | None:
    return None if between is None else Between(low=round(between.low, 3), high=round(between.high, 3))


def _planned(
    choice: Choice, proven: Confirmed | None, proofs: Sequence[Proven], gained: TargetGain | None
) -> PlannedChoice:
    records = [*(proven.earned if proven else ()), *([gained.reached] if gained else [])]
    earned = [each.speedup for each in records if each.speedup and same(each.choice, choice)]
    stated = [_proof(each) for each in proofs if same(each.choice, choice) and each.passes]
    proof = next((each for each in reversed(stated) if each is not None), None)
    speedup = _to_print(earned[0]) if earned and earned[0].pairs else None
    return PlannedChoice(choice=choice, speedup=speedup, proof=proof)


def _to_print(found: Speedup) -> Speedup:
    """Three digits behind the point are more than any interval says."""
    return replace(found, ratio=round(found.ratio, 3), low=round(found.low, 3), high=round(found.high, 3))


def _proof(proven: Proven) -> Proof | None:
    """As the plan states it; None of one by bits, which has no figures."""
    if proven.by_losses:
        return Proof(losses=proven.reason)
    if proven.gradient_error is None or proven.bound is None:
        return None
    return Proof(gradient_error=round(proven.gradient_error, 3), bound=proven.bound)


def _left(kept: Sequence[Choice], tried: Sequence[Tried]) -> list[Tried]:
    """The last trial of every choice that is not in the plan."""
    last: list[Tried] = []
    for each in tried:
        last = [other for other in last if not same(other.choice, each.choice)] + [each]
    return [each for each in last if not any(same(each.choice, choice) for choice in kept)]


def _rejected(tried: Tried, kept: Sequence[Choice], proofs: Sequence[Proven]) -> Rejected:
    failed, choice = _failed(tried, proofs), tried.choice
    reason = failed[-1] if failed else _why(tried, kept)
    options = ", ".join(f"{name} = {value}" for name, value in choice.options.items())
    reason = shortened(f"with {options}: {reason}" if options else reason, LONGEST_REASON)
    return Rejected(technique=choice.technique, value=choice.value, reason=reason)


def _failed(tried: Tried, proofs: Sequence[Proven]) -> list[str]:
    """Why its proofs have failed."""
    return [proof.reason for proof in proofs if same(proof.choice, tried.choice) and not proof.passes]


def _not_tried(kept: Sequence[Choice], skipped: Sequence[Tried], refused: Mapping[str, str]) -> dict[str, str]:
    """Technique -> the values that were skipped, and why; or why it has none to try here."""
    values = dict[str, dict[str, list[str]]]()
    for each in skipped:
        values.setdefault(each.choice.technique, {}).setdefault(each.reason, []).append(str(each.choice.value))
    found = {
        technique: "; ".join(f"{', '.join(dict.fromkeys(each))}: {reason}" for reason, each in reasons.items())
        for technique, reasons in values.items()
    }
    found |= {technique: why for technique, why in refused.items() if all(technique != each.technique for each in kept)}
    return {technique: shortened(why, LONGEST_REASON) for technique, why in found.items()}


def _why(tried: Tried, kept: Sequence[Choice]) -> str:
    """What was measured, and why the choice is not in the plan."""
    found = tried.speedup
    if found is None:
        return f"{tried.verdict}: {tried.reason}"
    interval = f"95 % interval {found.low:.2f} to {found.high:.2f}, {found.pairs} pairs"
    ratio = f"{found.ratio:.2f} times as fast with it ({interval})"
    if tried.verdict != "faster":
        verdict = "stopped early" if tried.cut_short else tried.verdict
        return "; ".join(filter(None, [f"{verdict}: {ratio}", why_no_gain(tried)]))
    if tried.reason.endswith(UNPROVEN):
        return f"faster in its trial: {ratio}{UNPROVEN}"
    rival = next((choice for choice in kept if choice.technique == tried.choice.technique), None)
    if rival is not None:
        why = f"{rival} was faster"
    else:
        why = "no gain in the whole plan" if kept else "the whole plan with it was not proven to be faster"
    return f"faster in its trial: {ratio}; {why}"
