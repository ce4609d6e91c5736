"""Where the time goes, for the baseline and with the plan: in the whole run, and in one step."""

from __future__ import annotations

from collections.abc import Mapping

from hasten.facts.formatting import byte_size
from hasten.facts.plan import Total
from hasten.facts.trials import Costs, Surveyed
from hasten.report.display import STEP_PARTS, duration, listed, many, percent
from hasten.report.page.charts import bar
from hasten.report.page.page_model import Cell, Column, Picture, Section, Table
from hasten.report.page.plan_evidence import Evidence

ARMS = {"plain": "baseline", "planned": "with the plan"}
RUN_PARTS = {
    "once": "startup",
    "steps": "optimizer steps",
    "turns": "starting the later epochs",
    "interruptions": "evaluating and saving within epochs",
    "evaluation": "evaluations",
}

Parts = Mapping[str, float]  # seconds by part


def bars(arms: Mapping[str, Parts]) -> list[tuple[str, Picture, str]]:
    """A row for each arm: its name, its parts end to end, and their sum."""
    longest = max((sum(parts.values()) for parts in arms.values()), default=0.0)
    sums = {arm: duration(sum(parts.values())) for arm, parts in arms.items()}
    return [
        (ARMS[arm], bar(parts.items(), longest, f"{ARMS[arm]}: {sums[arm]}"), sums[arm]) for arm, parts in arms.items()
    ]


def time_of_the_run(evidence: Evidence) -> Section | None:
    confirmed, measured, surveyed = evidence.confirmed, evidence.measured, evidence.surveyed
    if confirmed is None:
        return None
    both = {"plain": confirmed.plain} | ({"planned": measured.planned} if measured is not None else {})
    parts = {arm: _parts_of_run(costs, surveyed) for arm, costs in both.items()}
    lead = f"{_length(surveyed)} Startup builds, compiles and warms up the job, and fills caches."
    lead += _paid_back(evidence.plan.total)
    if evidence.stops_early:
        lead += " Early stopping may end the run sooner."
    if measured is not None:
        lead += " Each part is measured on its own, so the total can differ from the headline, which compares pairs."
    memory: list[Cell | str] = ["peak memory", *(byte_size(costs.peak_bytes) for costs in both.values())]
    return Section(
        title="Where the time of the run goes",
        lead=lead,
        bars=bars(parts),
        table=_table("Time of each part of the planned run, and its share of the total", RUN_PARTS, parts, memory),
    )


def time_of_a_step(evidence: Evidence) -> Section | None:
    budgets = {arm: evidence.budgets[arm] for arm in ARMS if arm in evidence.budgets}
    if not budgets:
        return None
    parts = {arm: {part: getattr(budget, part) for part in STEP_PARTS} for arm, budget in budgets.items()}
    profiled = listed([f"{many(budget.steps, 'step')} ({ARMS[arm]})" for arm, budget in budgets.items()])
    evaluation: list[Cell | str] = ["one evaluation", *(duration(budget.evaluation) for budget in budgets.values())]
    return Section(
        title="Where the time of a step goes",
        lead=f"Means of {profiled} in a profile. They show where time goes; the trials show what a choice gains.",
        bars=bars(parts),
        table=_table(
            "Time of each part of one optimizer step, and its share of the step", STEP_PARTS, parts, evaluation
        ),
    )


def _paid_back(total: Total | None) -> str:
    if total is None:
        return ""
    step = total.break_even_step
    if step is None:
        return " The shorter steps never make up for the longer startup."
    return f" The plan has made up for its longer startup by step {step:,}." if step else ""


def _parts_of_run(costs: Costs, surveyed: Surveyed | None) -> Parts:
    """All of it counts as steps where the length of the run is unknown."""
    if surveyed is None or surveyed.total_steps is None:
        return {"steps": costs.total}
    return {
        "once": costs.one_off,
        "steps": costs.step * surveyed.total_steps,
        "turns": costs.turn * ((surveyed.total_epochs or 1) - (not surveyed.ends_with_turn)),
        "interruptions": costs.interruptions,
        "evaluation": costs.evaluation * surveyed.evaluations,
    }


def _length(surveyed: Surveyed | None) -> str:
    if surveyed is None or surveyed.total_steps is None:
        return ""
    epochs = [many(surveyed.total_epochs, "epoch")] if surveyed.total_epochs is not None else []
    lengths = [many(surveyed.total_steps, "optimizer step"), *epochs, many(surveyed.evaluations, "evaluation")]
    return f"The planned run has {listed(lengths)}."


def _table(caption: str, names: Mapping[str, str], arms: Mapping[str, Parts], last: list[Cell | str]) -> Table:
    """A row for each part that any arm has, one for their sum, and a last one."""
    columns: list[Column] = [("part", "name"), *((ARMS[arm], "number") for arm in arms)]
    sums = [sum(parts.values()) for parts in arms.values()]
    rows = list[list[Cell | str]]()
    for part, name in names.items():
        seconds = [parts.get(part, 0.0) for parts in arms.values()]
        if any(seconds):
            cells = (
                Cell(text=duration(value), small=percent(value / of)) if value else "none"
                for value, of in zip(seconds, sums, strict=True)
            )
            rows.append([Cell(text=name, swatch=part), *cells])
    rows.append([Cell(text="total", kind="sum"), *(Cell(text=duration(each), kind="sum") for each in sums)])
    return Table(caption=caption, columns=columns, rows=[*rows, last], kind="parts")
