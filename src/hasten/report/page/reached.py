"""Choices that change what is learned: how soon each comes to what the job itself comes to."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hasten.facts.trials import Reached
from hasten.report.page import words
from hasten.report.page.drawing import Axis, interval, ratio_axis
from hasten.report.page.markup import Markup, Part, element
from hasten.report.page.plan_evidence import Evidence
from hasten.report.page.shell import lead, section, table, two_lines


def time_to_the_target(evidence: Evidence) -> Markup | None:
    if not evidence.reached:
        return None
    axis = ratio_axis([record.speedup for record in evidence.reached if record.speedup is not None])
    return section(
        "Time to the target",
        lead(
            "These choices change what is learned, so their steps cannot be compared. What is compared is the training "
            "up to the first evaluation that is at least as good as the job's own at its end, from the same seeds, "
            "without the time to start. A plan that has such a choice ends there."
        ),
        table(
            "Choices that change training",
            [("choice", "name"), ("verdict", ""), ("", "drawn"), ("ratio", "number"), ("to the target", "reason")],
            [_cells(record, _verdict(record, evidence), axis) for record in evidence.reached],
            kind="heard",
        ),
    )


def target_sentence(kept: Sequence[Reached]) -> str:
    """What the choices that joined for it make of the time to the target. One at least."""
    first, last = kept[0], kept[-1]
    with_it, without = (_middle(values) for values in (last.seconds_with, first.seconds_without))
    named = [f"{words.named(record.choice)}{_times(record)}" for record in kept]
    return (
        f"With {words.listed(named)}, which changes what is learned, it comes to the job's own {first.metric} in "
        f"{with_it} of training instead of {without}, and ends there"
    )


def _times(record: Reached) -> str:
    found = record.speedup
    if found is None:
        return ""
    seeds = words.many(found.pairs, "seed")
    return f" ({words.ratio(found)}, 95 % {words.interval(found)}, {seeds})"


def _verdict(record: Reached, evidence: Evidence) -> tuple[str, str]:
    """A kind, and the words with their sign."""
    if any(record is other for other in evidence.gained):
        return "kept", "✓ kept"
    return ("faster", "+ sooner") if record.kept else ("other", "· not kept")


def _cells(record: Reached, judged: tuple[str, str], axis: Axis) -> list[Part]:
    kind, verdict = judged
    beside = words.listed([words.named(choice) for choice in record.on]) or "the job as it is"
    cells: list[Part] = [
        two_lines(element("code", words.named(record.choice)), f"beside {beside}"),
        element("span", verdict, class_=f"verdict {kind}"),
    ]
    came = sum(each is not None for each in record.seconds_with)
    seeds = f"from {came:,} of {words.many(len(record.seeds), 'seed')}"
    told = two_lines(f"{_middle(record.seconds_with)} instead of {_middle(record.seconds_without)}, {seeds}", None)
    if record.speedup is None:
        return [*cells, None, None, two_lines(told, record.sentence)]
    ratio = two_lines(words.ratio(record.speedup), f"{words.interval(record.speedup)}, {words.pairs(record.speedup)}")
    drawn = interval(record.speedup, axis, kind, words.measured(record.speedup))
    return [*cells, drawn, ratio, two_lines(told, record.sentence)]


def _middle(values: Sequence[float | None]) -> str:
    """The median of the seconds, a dash where one is not known."""
    found = [words.known(value) for value in values]
    seen = [value for value in found if value is not None]
    return words.seconds(median(seen)) if seen and len(seen) == len(found) else words.seconds(None)
