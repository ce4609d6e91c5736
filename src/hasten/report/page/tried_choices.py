"""Everything that was tried: what was kept, what made no difference, what lost, and what could not be tried.

Losers are the larger part of what a search finds out, and are shown with the same figures as winners.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hasten.facts.choice import Choice, Speedup
from hasten.facts.plan import Rejected
from hasten.facts.trials import Reached, Tried
from hasten.report.display import interval, listed, many, measured, named, ratio
from hasten.report.page.charts import Axis, interval_picture, ratio_axis
from hasten.report.page.page_model import Cell, Section, Table
from hasten.report.page.plan_evidence import Evidence, identity
from hasten.report.plan_sentence import middle

SIGNS = {
    "kept": "✓",
    "faster alone": "+",
    "no difference": "=",
    "slower": "−",
    "stopped early": "…",
    "failed": "✕",
    "skipped": "…",
    "refused": "∅",
}
"""Verdict -> a sign beside it, in the order of the table. Any other is shown last, by its own name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    what: str
    verdict: str
    reason: str
    speedup: Speedup | None = None
    beside: str = ""  # the plan that it was added to


def what_was_tried(evidence: Evidence) -> Section | None:
    found = rows_of(evidence)
    if not found:
        return None
    axis = ratio_axis(row.speedup for row in found)
    counts = Counter(row.verdict for row in found)
    counted = listed([f"{number:,} {verdict}" for verdict, number in counts.items()], most=len(SIGNS) + 1)
    return Section(
        title="Everything that was tried",
        lead=f"{counted}. Each choice ran beside the same plan without it; the ratio is of the run's seconds.",
        table=Table(
            caption="Trials and their verdicts",
            columns=[("choice", "name"), ("verdict", ""), ("", "drawn"), ("ratio", "number"), ("reason", "reason")],
            rows=[_cells(row, axis) for row in found],
            kind="hidden-caption",
        ),
    )


def rows_of(evidence: Evidence) -> list[Row]:
    """The rows of the table, the kept ones first. A choice that was tried beside several plans has a row for each."""
    rows = [_row_of(trial, evidence) for trial in evidence.tried]
    shown = {row.what for row in rows} | {trial.choice.technique for trial in evidence.tried}
    refused = evidence.surveyed.refused if evidence.surveyed is not None else dict[str, str]()
    rows += [Row(what=name, verdict="refused", reason=reason) for name, reason in refused.items()]
    not_tried = [Rejected(technique=name, reason=why) for name, why in evidence.plan.not_tried.items()]
    for item in (*evidence.plan.rejected, *not_tried):
        what = item.technique if item.value is None else named(Choice(technique=item.technique, value=item.value))
        if what not in shown and item.technique not in refused:
            rows.append(Row(what=what, verdict="rejected", reason=item.reason))
    order = [*SIGNS]
    return sorted(rows, key=lambda row: order.index(row.verdict) if row.verdict in SIGNS else len(order))


def _row_of(trial: Tried, evidence: Evidence) -> Row:
    verdict = "stopped early" if trial.cut_short else trial.verdict
    reason = "" if trial.reason == str(trial.speedup) else trial.reason  # the ratio has a column of its own
    if verdict == "stopped early":
        reason = reason or "dropped before it reached significance"
    elif verdict == "faster":
        kept = identity(trial.choice) in map(identity, evidence.choices)
        verdict = "kept" if kept else "faster alone"
        if not kept:
            tried = (trial.choice.technique, trial.choice.value)
            rejected = [each.reason for each in evidence.plan.rejected if (each.technique, each.value) == tried]
            reason = rejected[0] if rejected else reason
    beside = listed([named(choice) for choice in trial.on]) or "the baseline"
    return Row(what=named(trial.choice), verdict=verdict, reason=reason, speedup=trial.speedup, beside=beside)


def speedup_cells(speedup: Speedup | None, axis: Axis, kind: str) -> list[Cell | str]:
    """The picture of a ratio, and the ratio with its interval."""
    if speedup is None:
        return ["", ""]
    picture = interval_picture(speedup, axis, kind, measured(speedup))
    return [
        Cell(picture=picture),
        Cell(text=ratio(speedup), small=f"{interval(speedup)}, {many(speedup.pairs, 'pair')}"),
    ]


def _cells(row: Row, axis: Axis) -> list[Cell | str]:
    kind = row.verdict.partition(" ")[0] if row.verdict in SIGNS else "other"
    return [
        Cell(text=row.what, small=f"beside {row.beside}" if row.beside else "", kind="code"),
        Cell(text=f"{SIGNS.get(row.verdict, '·')} {row.verdict}", kind=f"verdict {kind}"),
        *speedup_cells(row.speedup, axis, kind),
        row.reason,
    ]


# ── choices that change training ────────────────────────────────────────────────────────────────────────────────────


def time_to_the_target(evidence: Evidence) -> Section | None:
    if not evidence.reached:
        return None
    axis = ratio_axis(record.speedup for record in evidence.reached)
    return Section(
        title="Time to the target",
        lead="These choices change what is learned, so their steps cannot be compared. Compared is the training time "
        "until the first evaluation that is at least as good as the baseline's at its end, from the same seeds, "
        "without the time to start. A plan with such a choice stops there.",
        table=Table(
            caption="Choices that change training",
            columns=[
                *(("choice", "name"), ("verdict", ""), ("", "drawn")),
                *(("ratio", "number"), ("to the target", "reason")),
            ],
            rows=[_target_cells(record, evidence, axis) for record in evidence.reached],
            kind="hidden-caption",
        ),
    )


def _target_cells(record: Reached, evidence: Evidence, axis: Axis) -> list[Cell | str]:
    joined = any(record is other for other in evidence.gained)
    kind, verdict = ("kept", "✓ kept") if joined else ("faster", "+ sooner") if record.kept else ("other", "· not kept")
    beside = listed([named(choice) for choice in record.on]) or "the baseline"
    reached = sum(each is not None for each in record.seconds_with)
    seconds = f"{middle(record.seconds_with)} instead of {middle(record.seconds_without)}"
    return [
        Cell(text=named(record.choice), small=f"beside {beside}", kind="code"),
        Cell(text=verdict, kind=f"verdict {kind}"),
        *speedup_cells(record.speedup, axis, kind),
        Cell(text=f"{seconds}, from {reached:,} of {many(len(record.seeds), 'seed')}", small=record.sentence),
    ]
