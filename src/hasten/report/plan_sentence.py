"""What a plan makes of the job, in one sentence: on the terminal after a search, and on top of the page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hasten.facts.plan import Between
from hasten.facts.trials import Confirmed, Reached, Verdict, verdict_of
from hasten.report.display import BY_WINDOWS, duration, interval, listed, many, named, ratio, spread

_STOPS_EARLY = "; all of it unless early stopping ends the run before"


def search_sentence(
    proven: Confirmed | None,
    plain_seconds: float,
    gained: Sequence[Reached] = (),
    *,
    between: Between | None = None,
    stops_early: bool = False,
) -> str:
    """The result of a search.

    plain_seconds, between: of the baseline, where no plan is proven, and their spread, if it is known.
    gained: the choices that change training and joined the plan, in that order. stops_early: whether early stopping
    can end the planned run earlier.
    """
    if proven is not None:
        sentence = plan_sentence(proven)
    else:
        sentence = f"This job takes about {duration(plain_seconds)}{spread(between, BY_WINDOWS)}; "
        what = "its planned run shorter" if gained else "it faster"
        sentence += f"nothing that was tried is proven to make {what}"
    if gained:
        sentence += f". {target_sentence(gained)}"
    return sentence + (_STOPS_EARLY if stops_early else "")


def plan_sentence(confirmed: Confirmed) -> str:
    """What the confirmation of a whole plan found."""
    found = confirmed.speedup
    plain = duration(confirmed.plain.total) + spread(confirmed.plain.between, BY_WINDOWS)
    planned = duration(confirmed.planned_seconds) + spread(confirmed.planned_between)
    figures = f"{ratio(found)}, 95 % {interval(found)}, {many(found.pairs, 'pair')}"
    match verdict_of(confirmed):
        case Verdict.FASTER:
            return f"This job would take {plain}; with this plan {planned} ({figures})"
        case Verdict.SLOWER:
            return f"This job takes {plain}, and longer with this plan: {planned} ({figures})"
        case Verdict.WITHIN_NOISE:
            figures = f"{figures}; the baseline against itself {interval(confirmed.noise)}"
            return f"This job takes {plain}, and this plan differs no more than the baseline from itself ({figures})"
        case Verdict.TOO_LITTLE:
            return f"This job takes {plain}, and this plan gains less than 1 % ({figures})"
        case Verdict.NO_DIFFERENCE:
            return f"This job takes {plain}, and this plan makes no difference beyond noise ({figures})"


def target_sentence(gained: Sequence[Reached]) -> str:
    """How much sooner the choices that change training reach the job's own result. One choice at least."""
    first, last = gained[0], gained[-1]
    choices = listed([f"{named(each.choice)}{_figures(each)}" for each in gained])
    return (
        f"With {choices}, which changes what is learned, the job reaches its own final {first.metric} in "
        f"{middle(last.seconds_with)} of training instead of {middle(first.seconds_without)}, and stops there"
    )


def middle(values: Sequence[float | None]) -> str:
    """The median of the seconds; a dash where one is unknown."""
    found = [value for value in values if value is not None]
    return duration(median(found) if len(found) == len(values) else None)


def _figures(record: Reached) -> str:
    found = record.speedup
    return "" if found is None else f" ({ratio(found)}, 95 % {interval(found)}, {many(found.pairs, 'seed')})"
