"""Where the time goes, for the baseline and with the plan: technique by technique, in the whole run, in one step."""

from __future__ import annotations

from collections.abc import Mapping

from hasten.facts.plan import Total
from hasten.facts.trials import Budget, Costs, Step, Surveyed
from hasten.report.display import duration, known, listed, many, named, percent, size, whole
from hasten.report.page.charts import Axis, bar, span
from hasten.report.page.page_model import Cell, Column, Picture, Section, Table
from hasten.report.page.plan_evidence import Evidence

ARMS = {"plain": "baseline", "planned": "with the plan"}
RUN_PARTS = {
    "once": "once, at the start",
    "steps": "optimizer steps",
    "turns": "starts of later epochs",
    "evaluation": "evaluations",
}
STEP_PARTS = {
    "data_wait": "waiting for data",
    "transfer": "transfer to the device",
    "forward": "forward, with the loss",
    "backward": "backward",
    "optimizer": "clipping and the update",
    "python": "Python, and the rest",
}

Parts = Mapping[str, float]  # seconds by part; none is negative


def bars(arms: Mapping[str, Parts]) -> list[tuple[str, Picture, str]]:
    """A row for each arm: its name, its parts end to end, and their sum."""
    longest = max(sum(parts.values()) for parts in arms.values())
    sums = {arm: duration(sum(parts.values())) for arm, parts in arms.items()}
    return [
        (ARMS[arm], bar(parts.items(), longest, f"{ARMS[arm]}: {sums[arm]}"), sums[arm]) for arm, parts in arms.items()
    ]


def from_baseline_to_plan(evidence: Evidence) -> Section | None:
    """The seconds of the run after each technique; None where the records lack them or have impossible ones."""
    steps = evidence.steps
    ends = [value for step in steps for value in (step.total, step.low, step.high)]
    if len(steps) < 2 or not all(known(value) is not None and value >= 0 for value in ends):
        return None
    axis, rows, before = Axis(low=0.0, high=max(ends) or 1.0), list[list[Cell | str]](), 0.0
    for step in steps:
        rows.append(_row_of(step, before, axis))
        before = step.total
    last = steps[-1]
    drawn = span("planned", 0.0, last.total, (last.low, last.high), axis, f"the plan: {duration(last.total)}")
    rows.append(["the plan", Cell(picture=drawn), _with_ends(last), ""])
    return Section(
        title="From the baseline to the plan",
        lead="Seconds of the planned run as one technique after the other is added, by the ratios to the baseline and "
        "their 95 % intervals.",
        table=Table(
            caption="Technique by technique",
            columns=[("with", "name"), ("", "drawn wide"), ("the run takes", "number"), ("change", "number")],
            rows=rows,
            kind="heard",
        ),
    )


def _row_of(step: Step, before: float, axis: Axis) -> list[Cell | str]:
    seconds, ends = duration(step.total), (step.low, step.high)
    if step.choice is None:
        drawn = span("plain", 0.0, step.total, ends, axis, f"the baseline: {seconds}")
        return ["the baseline", Cell(picture=drawn), seconds, ""]
    kind, sign = ("saved", "−") if step.total <= before else ("lost", "+")
    drawn = span(kind, before, step.total, ends, axis, f"with {named(step.choice)}: {seconds}")
    change = f"{sign}{duration(abs(step.total - before))}"
    return [Cell(text=named(step.choice), kind="code"), Cell(picture=drawn), _with_ends(step), change]


def _with_ends(step: Step) -> Cell:
    return Cell(text=duration(step.total), small=f"{duration(step.low)} – {duration(step.high)}")


def time_of_the_run(evidence: Evidence) -> Section | None:
    confirmed, measured, surveyed = evidence.confirmed, evidence.measured, evidence.surveyed
    if confirmed is None:
        return None
    both = {"plain": confirmed.plain} | ({"planned": measured.planned} if measured is not None else {})
    parts = {arm: _parts_of_run(costs, surveyed) for arm, costs in both.items()}
    lead = f"{_length(surveyed)} At the start the job is built, compiled and warmed up, and caches are filled."
    lead += _paid_back(evidence.plan.total)
    if evidence.stops_early:
        lead += " All of it unless early stopping ends the run before."
    rows = _rows(RUN_PARTS, parts)
    rows.append(["most memory", *(size(costs.peak_bytes) for costs in both.values())])
    return Section(
        title="Where the time of the run goes",
        lead=lead,
        bars=bars(parts),
        table=_table("Seconds of the planned run, by the medians of what was measured", parts, rows),
    )


def time_of_a_step(evidence: Evidence) -> Section | None:
    budgets = {arm: evidence.budgets[arm] for arm in ARMS if arm in evidence.budgets}
    if not budgets:
        return None
    parts = {arm: _parts_of_step(budget) for arm, budget in budgets.items()}
    profiled = listed([f"{many(budget.steps, 'step')} ({ARMS[arm]})" for arm, budget in budgets.items()])
    rows = _rows(STEP_PARTS, parts)
    rows.append(["one evaluation", *(duration(budget.evaluation) for budget in budgets.values())])
    return Section(
        title="Where the time of a step goes",
        lead=f"Means over {profiled}. They show where time goes, not what a choice gains.",
        bars=bars(parts),
        table=_table("Seconds of one optimizer step, and its share of the step", parts, rows),
    )


def _paid_back(total: Total | None) -> str:
    if total is None:
        return ""
    if total.break_even_step is None:
        return " Shorter steps alone never pay back what the plan costs at the start."
    step = known(total.break_even_step)
    return f" The plan has paid back its costs at the start from step {whole(step)} on." if step else ""


def _parts_of_run(costs: Costs, surveyed: Surveyed | None) -> Parts:
    """All of it counts as steps where the length of the run is unknown."""
    steps = known(surveyed.total_steps) if surveyed is not None else None
    if surveyed is None or steps is None:
        return {"steps": max(known(costs.total) or 0.0, 0.0)}
    epochs, evaluations = known(surveyed.total_epochs) or 1.0, known(surveyed.evaluations) or 0.0
    found = {
        "once": known(costs.one_off) or 0.0,
        "steps": (known(costs.step) or 0.0) * steps,
        "turns": (known(costs.turn) or 0.0) * (epochs - 1),
        "evaluation": (known(costs.evaluation) or 0.0) * evaluations,
    }
    return {kind: max(value, 0.0) for kind, value in found.items()}


def _parts_of_step(budget: Budget) -> Parts:
    return {part: max(known(getattr(budget, part)) or 0.0, 0.0) for part in STEP_PARTS}


def _length(surveyed: Surveyed | None) -> str:
    if surveyed is None or surveyed.total_steps is None:
        return ""
    epochs = [many(surveyed.total_epochs, "epoch")] if surveyed.total_epochs is not None else []
    lengths = [many(surveyed.total_steps, "optimizer step"), *epochs, many(surveyed.evaluations, "evaluation")]
    return f"The planned run has {listed(lengths)}."


def _table(caption: str, arms: Mapping[str, Parts], rows: list[list[Cell | str]]) -> Table:
    columns: list[Column] = [("part", "name"), *((ARMS[arm], "number") for arm in arms)]
    return Table(caption=caption, columns=columns, rows=rows, kind="parts")


def _rows(names: Mapping[str, str], arms: Mapping[str, Parts]) -> list[list[Cell | str]]:
    """A row for each part that any arm has, and one for their sum."""
    sums = [sum(parts.values()) for parts in arms.values()]
    rows = list[list[Cell | str]]()
    for part, name in names.items():
        seconds = [parts.get(part, 0.0) for parts in arms.values()]
        if any(seconds):
            cells = (_share(value, of) for value, of in zip(seconds, sums, strict=True))
            rows.append([Cell(text=name, swatch=part), *cells])
    return [*rows, [Cell(text="together", kind="sum"), *(Cell(text=duration(each), kind="sum") for each in sums)]]


def _share(value: float, of: float) -> Cell | str:
    return Cell(text=duration(value), small=percent(value / of)) if value else "none"
