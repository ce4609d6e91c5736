"""What a plan makes of the job: a headline that a person can repeat, and the small print behind it.

Both are on the terminal after a search, and on top of the page of a plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Between, Total
from hasten.facts.trials import Confirmed, Proven, Reached, Verdict, verdict_of
from hasten.report.display import duration, interval, listed, many, ratio
from hasten.report.sentence import Sentence

NOTHING_PROVEN = "No faster: nothing that was tried is proven to shorten this job"
NOTHING_TRIED = "Nothing was tried: steps are so long that a search needs about"
NO_FASTER_SCRIPT = "No faster: nothing that was tried is proven to shorten this script"
_WHOLE_RUN = "the whole run with startup"
_STOPS_EARLY = "early stopping may end the run before"
_NO_FASTER = {
    Verdict.WITHIN_NOISE: "this plan differs from the baseline no more than the baseline from itself",
    Verdict.TOO_LITTLE: "this plan gains less than 1 %",
    Verdict.NO_DIFFERENCE: "this plan makes no difference beyond the measurement error",
}


def search_sentence(
    proven: Confirmed | None,
    plain_seconds: float,
    gained: Sequence[Reached] = (),
    *,
    between: Between | None = None,
    stops_early: bool = False,
    nothing_proven: str = NOTHING_PROVEN,
) -> Sentence:
    """The result of a search.

    plain_seconds, between: of the baseline, where no plan is proven, and their spread, if it is known.
    gained: the choices that change training and joined the plan, in that order. stops_early: whether early stopping
    can end the planned run earlier. nothing_proven: the headline where nothing is faster.
    """
    sentences: list[Sentence] = []
    if proven is not None:
        sentences.append(plan_sentence(proven))
    elif not gained:
        sentences.append(Sentence(headline=nothing_proven, small_print=_baseline_takes(plain_seconds, between)))
    if gained:
        sentences.append(target_sentence(gained))
    small_print = [each.small_print for each in sentences]
    return Sentence(
        headline=". ".join(each.headline for each in sentences),
        small_print=_lines(*small_print, _STOPS_EARLY if stops_early else ""),
    )


def plan_sentence(confirmed: Confirmed) -> Sentence:
    """What the confirmation of a whole plan found."""
    found, verdict = confirmed.speedup, verdict_of(confirmed)
    plain, planned = duration(confirmed.plain.total), duration(confirmed.planned_seconds)
    pairs = many(found.pairs, "pair")
    certain = f"95 % confidence interval of the ratio: {interval(found)}, from {pairs} of timings"
    if verdict in _NO_FASTER:
        headline = f"No faster: {_NO_FASTER[verdict]}"
        certain = f"{ratio(found)}, {certain}"
        seconds = _baseline_takes(confirmed.plain.total, confirmed.plain.between)
    else:
        headline = f"{ratio(found)} {'faster' if verdict is Verdict.FASTER else 'as fast'}: {plain} → {planned}"
        seconds = _together(f"predicted for {_WHOLE_RUN}", _in_most(confirmed.plain.between, confirmed.planned_between))
    noise = f"the baseline against itself: {interval(confirmed.noise)}" if verdict is Verdict.WITHIN_NOISE else ""
    return Sentence(headline=headline, small_print=_lines(certain, noise, seconds))


def stated_sentence(total: Total) -> Sentence:
    """Of a plan whose measurements are not there."""
    return Sentence(
        headline=f"A plan that states {duration(total.baseline_seconds)} → {duration(total.planned_seconds)}",
        small_print=_in_most(total.baseline_between, total.planned_between),
    )


def results_with(choices: Sequence[Choice], proofs: Sequence[Proven]) -> list[str]:
    """What each proven choice of a plan makes of the results of training, and what has shown that."""
    last = {proof.choice.technique: proof for proof in proofs if proof.passes}
    return [f"{each.technique}: {_results(last[each.technique])}" for each in choices if each.technique in last]


def _results(proof: Proven) -> str:
    if proof.gradient_error is not None:
        return "equal up to rounding, by gradients beside float64"
    if not proof.by_losses:
        return "equal to the last bit, by the losses of the first steps"
    claims_rounding = proof.choice.preserves is Preserves.ROUNDING
    differ = "claims rounding; its gradients could not be compared" if claims_rounding else "differ beyond rounding"
    shown = "agree within 1 %"
    if proof.inconclusive:
        shown = "rule out a harm of 1 %" if proof.unharmed else "show no harm; a harm of 1 % is not excluded"
    return f"{differ}; losses of short runs, over seeds, {shown}"


def pays(confirmed: Confirmed, search_seconds: float) -> str:
    """After how many runs the plan has saved what its search took; "" where it saves nothing."""
    saved = confirmed.plain.total - confirmed.planned_seconds
    if saved <= 0:
        return ""
    runs = math.ceil(search_seconds / saved)
    took = f"{duration(saved)} saved{' each' if runs > 1 else ''}, the search took {duration(search_seconds)}"
    return f"after about {runs:,} runs ({took})" if runs > 1 else f"within the first run ({took})"


def target_sentence(gained: Sequence[Reached]) -> Sentence:
    """How much sooner the choices that change training reach the job's own result. One choice at least."""
    first, last = gained[0], gained[-1]
    seconds = f"{middle(first.seconds_without)} → {middle(last.seconds_with)}"
    choices = listed([f"{each.choice}{_figures(each)}" for each in gained])
    return Sentence(
        headline=f"The job's own final {first.metric} sooner: {seconds} of training",
        small_print=f"with {choices}, which changes what is learned; training stops there",
    )


def middle(values: Sequence[float | None]) -> str:
    """The median of the seconds; a dash where one is unknown."""
    found = [value for value in values if value is not None]
    return duration(median(found) if len(found) == len(values) else None)


def _baseline_takes(seconds: float, between: Between | None) -> str:
    takes = f"the baseline is predicted to take {duration(seconds)} for {_WHOLE_RUN}"
    return _together(takes, _in_most(between, None))


def _in_most(plain: Between | None, planned: Between | None) -> str:
    """The spread of the seconds of both arms: the baseline's are measured, and the plan's are computed from them."""
    if plain is None:
        return ""
    return f"80 % of timings: {' → '.join(_range(each) for each in (plain, planned) if each is not None)}"


def _range(between: Between) -> str:
    """21.3–26.6 s; 59.0 s–1 min 02 s."""
    low, high = duration(between.low).split(), duration(between.high).split()
    in_one_unit = len(low) == len(high) == 2 and low[1] == high[1]
    return f"{low[0] if in_one_unit else ' '.join(low)}–{' '.join(high)}"


def _together(*texts: str) -> str:
    return "; ".join(filter(None, texts))


def _lines(*texts: str) -> str:
    return "\n".join(filter(None, texts))


def _figures(record: Reached) -> str:
    found = record.speedup
    return "" if found is None else f" ({ratio(found)}, 95 % {interval(found)}, {many(found.pairs, 'seed')})"
