"""Everything that was tried: what was kept, what made no difference, what lost, and what could not be tried at all.

Losers are the larger part of what a search finds out, and they stand here with the same figures as winners.
"""

from __future__ import annotations

from dataclasses import dataclass

from hasten.facts.choice import Choice, Speedup
from hasten.facts.trials import Tried
from hasten.report.page import words
from hasten.report.page.drawing import Axis, interval, ratio_axis
from hasten.report.page.markup import Markup, Part, element
from hasten.report.page.plan_evidence import Evidence, identity
from hasten.report.page.shell import lead, section, table, two_lines

MOST_ROWS = 300

SIGNS = {
    "kept": "✓",
    "faster alone": "+",
    "no difference": "=",
    "slower": "−",
    "cut short": "…",
    "failed": "✕",
    "skipped": "…",
    "refused": "∅",
}
"""Verdict -> a sign beside the word, in the order of the table. What is neither here is shown last, by its own name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    what: str
    verdict: str
    reason: str
    speedup: Speedup | None = None
    beside: str = ""  # the plan that it was added to


def what_was_tried(evidence: Evidence) -> Markup | None:
    found = rows_of(evidence)
    if not found:
        return None
    axis = ratio_axis([row.speedup for row in found if row.speedup is not None])
    rows = [_cells(row, axis) for row in found[:MOST_ROWS]]
    counted = {
        verdict: sum(row.verdict == verdict for row in found) for verdict in dict.fromkeys(row.verdict for row in found)
    }
    told = words.listed([f"{number:,} {verdict}" for verdict, number in counted.items()], most=len(SIGNS) + 1)
    more = f" The first {MOST_ROWS} are shown." if len(found) > MOST_ROWS else ""
    return section(
        "Everything that was tried",
        lead(f"{told}. Each choice ran beside the same plan without it; the ratio is of the run's seconds.{more}"),
        table(
            "Trials and their verdicts",
            [("choice", "name"), ("verdict", ""), ("", "drawn"), ("ratio", "number"), ("reason", "reason")],
            rows,
            kind="heard",
        ),
    )


def rows_of(evidence: Evidence) -> list[Row]:
    """The rows of the table, the kept ones first. A choice that was tried beside several plans has a row for each."""
    kept = set(map(identity, evidence.choices))
    rows = [_row_of(trial, evidence, kept) for trial in evidence.tried]
    told = {row.what for row in rows} | {trial.choice.technique for trial in evidence.tried}
    refused = evidence.surveyed.refused if evidence.surveyed is not None else dict[str, str]()
    rows += [Row(what=name, verdict="refused", reason=reason) for name, reason in refused.items()]
    for item in evidence.plan.rejected:
        choice = None if item.value is None else words.named(Choice(technique=item.technique, value=item.value))
        if (choice or item.technique) not in told and item.technique not in refused:
            rows.append(Row(what=choice or item.technique, verdict="rejected", reason=item.reason))
    order = list(SIGNS)
    return sorted(rows, key=lambda row: order.index(row.verdict) if row.verdict in SIGNS else len(order))


def _row_of(trial: Tried, evidence: Evidence, kept: set[str]) -> Row:
    verdict = "cut short" if trial.cut_short else trial.verdict
    if verdict == "faster":
        verdict = "kept" if identity(trial.choice) in kept else "faster alone"
    reason = "" if trial.reason == str(trial.speedup) else trial.reason  # which has a column of its own
    if verdict == "cut short":
        reason = reason or "it left before its answer was known"
    if verdict == "faster alone":
        named = (trial.choice.technique, trial.choice.value)
        reason = next((item.reason for item in evidence.plan.rejected if (item.technique, item.value) == named), reason)
    return Row(
        what=words.named(trial.choice),
        verdict=verdict,
        reason=reason,
        speedup=trial.speedup,
        beside=words.listed([words.named(choice) for choice in trial.on]) or "the job as it is",
    )


def _cells(row: Row, axis: Axis) -> list[Part]:
    kind = row.verdict.partition(" ")[0] if row.verdict in SIGNS else "other"
    verdict = element("span", f"{SIGNS.get(row.verdict, '·')} {row.verdict}", class_=f"verdict {kind}")
    name = two_lines(element("code", row.what), f"beside {row.beside}" if row.beside else None)
    if row.speedup is None:
        return [name, verdict, None, None, row.reason]
    ratio = two_lines(words.ratio(row.speedup), f"{words.interval(row.speedup)}, {words.pairs(row.speedup)}")
    return [name, verdict, interval(row.speedup, axis, kind, words.measured(row.speedup)), ratio, row.reason]
