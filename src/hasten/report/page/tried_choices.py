"""What was tried: what was kept, what made no difference and what lost; and what was not tried, with its reason.

Losers are the larger part of what a search finds out, and are shown with the same figures as winners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hasten.facts.choice import Choice
from hasten.facts.plan import Speedup
from hasten.facts.trials import Reached, Tried, why_no_gain
from hasten.report.display import interval, listed, many, ratio
from hasten.report.page.charts import Axis, interval_picture, ratio_axis
from hasten.report.page.page_model import Cell, Column, Section, Table, filled_table
from hasten.report.page.plan_evidence import Evidence, identity
from hasten.report.plan_sentence import middle

SIGNS = {
    "kept": "✓",
    "faster alone": "+",
    "no difference": "=",
    "slower": "−",
    "stopped early": "…",
    "failed": "✕",
}
"""Verdict -> a sign beside it, in the order of the table. Any other is shown last, by its own name."""

SKIPPED = "skipped"  # the verdict of a choice that was not tried
SPEEDUP_COLUMNS: Sequence[Column] = (("95 % interval (dashed: 1)", "drawn"), ("times as fast", "number"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    what: str
    verdict: str
    reason: str
    speedup: Speedup | None = None
    added_to: str = ""  # the plan that was compared with


def what_was_tried(evidence: Evidence) -> Section | None:
    found = rows_of(evidence)
    if not found:
        return None
    axis = ratio_axis(row.speedup for row in found)
    counts = Counter(row.verdict for row in found)
    counted = listed([f"{verdict} {number:,}" for verdict, number in counts.items()], most=len(SIGNS) + 1)
    columns = [("choice", "name"), ("verdict", "verdicts"), *SPEEDUP_COLUMNS, ("reason", "reason")]
    return Section(
        title="What was tried",
        lead=f"Verdicts: {counted}. Each choice was compared with the same plan without it, "
        "by the time of the planned run.",
        table=filled_table("Trials and their verdicts", columns, [_cells(row, axis) for row in found], "choices"),
    )


def what_was_not_tried(evidence: Evidence) -> Section | None:
    rows = [[Cell(text=what, kind="code"), reason] for what, reason in reasons_not_tried(evidence)]
    if not rows:
        return None
    columns = [("choice", "name"), ("reason", "")]
    caption = "Choices that were not tried, and why"
    return Section(title="What was not tried", table=Table(caption=caption, columns=columns, rows=rows, kind="choices"))


def rows_of(evidence: Evidence) -> list[Row]:
    """The rows of the table, the kept ones first. A choice that was added to several plans has a row for each."""
    rows = [_row_of(trial, evidence) for trial in evidence.tried if trial.verdict != SKIPPED]
    tried = {name for trial in evidence.tried for name in (str(trial.choice), trial.choice.technique)}
    elsewhere = _without_a_trial(evidence)
    for item in evidence.plan.rejected:
        what = item.technique if item.value is None else str(Choice(technique=item.technique, value=item.value))
        if what not in tried and item.technique not in elsewhere:
            rows.append(Row(what=what, verdict="rejected", reason=item.reason))
    order = [*SIGNS]
    return sorted(rows, key=lambda row: order.index(row.verdict) if row.verdict in SIGNS else len(order))


def reasons_not_tried(evidence: Evidence) -> list[tuple[str, str]]:
    """Choice and reason; the values of a technique that have one reason are together."""
    values = dict[tuple[str, str], dict[str, None]]()
    for trial in evidence.tried:
        if trial.verdict == SKIPPED:
            key = (trial.choice.technique, trial.reason)
            values.setdefault(key, {})[str(trial.choice).removeprefix(f"{trial.choice.technique} = ")] = None
    skipped = [(f"{technique} = {', '.join(each)}", reason) for (technique, reason), each in values.items()]
    return [*skipped, *_without_a_trial(evidence).items()]


def _without_a_trial(evidence: Evidence) -> Mapping[str, str]:
    """Technique -> why it has no trial at all."""
    tried = {trial.choice.technique for trial in evidence.tried}
    refused = evidence.surveyed.refused if evidence.surveyed is not None else dict[str, str]()
    return {name: why for name, why in {**refused, **evidence.plan.not_tried}.items() if name not in tried}


def _row_of(trial: Tried, evidence: Evidence) -> Row:
    verdict = "stopped early" if trial.cut_short else trial.verdict
    reason = why_no_gain(trial) if trial.reason == str(trial.speedup) else trial.reason  # the ratio has a column
    in_plan, others = _is_in(trial.choice, evidence.choices), evidence.tried
    if verdict == "faster" and in_plan:
        verdict = "kept"
    elif verdict == "faster":
        verdict, tried = "faster alone", (trial.choice.technique, trial.choice.value)
        rejected = [each.reason for each in evidence.plan.rejected if (each.technique, each.value) == tried]
        reason = rejected[0] if rejected else reason
    elif in_plan and not any(each.verdict == "faster" and _is_in(each.choice, [trial.choice]) for each in others):
        reason = "; ".join(filter(None, [reason, "measured again in the whole plan, and kept there"]))
    return Row(
        what=str(trial.choice), verdict=verdict, reason=reason, speedup=trial.speedup, added_to=_plan_text(trial.on)
    )


def _is_in(choice: Choice, choices: Sequence[Choice]) -> bool:
    return identity(choice) in map(identity, choices)


def speedup_cells(speedup: Speedup | None, axis: Axis, kind: str, of: str = "pair") -> list[Cell | str]:
    """The picture of a ratio, and the ratio with its interval. of: what was compared."""
    if speedup is None:
        return ["", ""]
    figures = f"{interval(speedup)}, {many(speedup.pairs, of)}"
    picture = interval_picture(speedup, axis, kind, f"{ratio(speedup)} ({figures})")
    return [Cell(picture=picture), Cell(text=ratio(speedup), small=figures)]


def _cells(row: Row, axis: Axis) -> list[Cell | str]:
    kind = row.verdict.partition(" ")[0] if row.verdict in SIGNS else "other"
    return [
        Cell(text=row.what, small=row.added_to and f"added to {row.added_to}", kind="code"),
        Cell(text=f"{SIGNS.get(row.verdict, '·')} {row.verdict}", kind=f"verdict {kind}"),
        *speedup_cells(row.speedup, axis, kind),
        row.reason,
    ]


# ── choices that change training ────────────────────────────────────────────────────────────────────────────────────


def time_to_the_target(evidence: Evidence) -> Section | None:
    if not evidence.reached:
        return None
    axis = ratio_axis(record.speedup for record in evidence.reached)
    columns = [("choice", "name"), ("verdict", "verdicts"), *SPEEDUP_COLUMNS, ("time to the target", "reason")]
    rows = [_target_cells(record, evidence, axis) for record in evidence.reached]
    return Section(
        title="Time to the target",
        lead="These choices change training, so the times of their steps cannot be compared. What is compared is the "
        "training time, without startup, until an evaluation is as good as the last one of the baseline from the same "
        "seed. A plan with such a choice stops training there.",
        table=filled_table("Choices that change training", columns, rows, "choices"),
    )


def _target_cells(record: Reached, evidence: Evidence, axis: Axis) -> list[Cell | str]:
    joined = any(record is other for other in evidence.gained)
    kind, verdict = ("kept", "✓ kept") if joined else ("faster", "+ sooner") if record.kept else ("other", "· not kept")
    reached = sum(each is not None for each in record.seconds_with)
    seconds = f"{middle(record.seconds_without)} → {middle(record.seconds_with)}"
    return [
        Cell(text=str(record.choice), small=f"added to {_plan_text(record.on)}", kind="code"),
        Cell(text=verdict, kind=f"verdict {kind}"),
        *speedup_cells(record.speedup, axis, kind, "seed"),
        Cell(text=f"{seconds}, reached by {reached:,} of {many(len(record.seeds), 'seed')}", small=record.sentence),
    ]


def _plan_text(choices: Sequence[Choice]) -> str:
    return listed([str(choice) for choice in choices]) or "the baseline"
