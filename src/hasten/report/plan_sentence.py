"""What a plan makes of the job: a headline that a person can repeat, and the small print behind it.

Both are on the terminal after a search, and on top of the page of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hasten.facts.choice import Choice
from hasten.facts.plan import Between, Total
from hasten.facts.trials import Confirmed, Proven, Reached, Verdict, verdict_of
from hasten.report.display import duration, interval, listed, many, ratio
from hasten.report.sentence import Sentence

NOTHING_PROVEN = "No faster: nothing that was tried is proven to shorten this job"
NO_FASTER_SCRIPT = "No faster: nothing that was tried is proven to shorten this script"
_WHOLE_RUN = "the whole run, startup included"
_STOPS_EARLY = "early stopping may end the run before"
_NO_FASTER = {
    Verdict.WITHIN_NOISE: "this plan differs from the baseline no more than the baseline from itself",
    Verdict.TOO_LITTLE: "this plan gains less than 1 %",
    Verdict.NO_DIFFERENCE: "this plan makes no difference beyond noise",
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
        takes = f"the baseline is predicted to take {duration(plain_seconds)} for {_WHOLE_RUN}"
        sentences.append(Sentence(headline=nothing_proven, small_print=_lines(takes, _spreads(between, None))))
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
    certain = f"95 % confidence interval of the ratio: {interval(found)}, from {pairs} of windows of steps"
    if verdict in _NO_FASTER:
        headline = f"No faster: {_NO_FASTER[verdict]}"
        certain = f"{ratio(found)}, {certain}"
        seconds = f"the baseline is predicted to take {plain} for {_WHOLE_RUN}"
    else:
        headline = f"{ratio(found)} {'faster' if verdict is Verdict.FASTER else 'as fast'}: {plain} → {planned}"
        seconds = f"the seconds are predicted for {_WHOLE_RUN}"
    noise = f"the baseline against itself: {interval(confirmed.noise)}" if verdict is Verdict.WITHIN_NOISE else ""
    spreads = _spreads(confirmed.plain.between, confirmed.planned_between)
    return Sentence(headline=headline, small_print=_lines(certain, noise, spreads, seconds))


def stated_sentence(total: Total) -> Sentence:
    """Of a plan whose measurements are not there."""
    return Sentence(
        headline=f"A plan that states {duration(total.baseline_seconds)} → {duration(total.planned_seconds)}",
        small_print=_spreads(total.baseline_between, total.planned_between),
    )


def checked(choices: Sequence[Choice], proofs: Sequence[Proven]) -> str:
    """What each choice of a plan was checked by; "" where nothing was."""
    last = {proof.choice.technique: proof for proof in proofs if proof.passes}
    return "; ".join(f"{each.technique}: {_by(last[each.technique])}" for each in choices if each.technique in last)


def _by(proof: Proven) -> str:
    if proof.gradient_error is not None:
        return "gradients beside float64"
    if not proof.by_losses:
        return "losses equal to the last bit"
    return "losses over seeds, which show no harm" if proof.inconclusive else "losses over seeds"


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


def _spreads(plain: Between | None, planned: Between | None) -> str:
    """Of the seconds of both arms: the baseline's are measured, and the plan's are computed from them."""
    if plain is None:
        return ""
    measured = f"middle 80 % of the windows: baseline {duration(plain.low)} to {duration(plain.high)}"
    if planned is None:
        return measured
    return f"{measured}, plan {duration(planned.low)} to {duration(planned.high)}"


def _lines(*texts: str) -> str:
    return "\n".join(filter(None, texts))


def _figures(record: Reached) -> str:
    found = record.speedup
    return "" if found is None else f" ({ratio(found)}, 95 % {interval(found)}, {many(found.pairs, 'seed')})"
