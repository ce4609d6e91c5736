"""Where the time goes, as it is and with the plan: technique by technique, in the whole run, and in one step.

A picture and its table are one: each part has its colour beside its name, and its seconds behind it.
"""

from __future__ import annotations

from collections.abc import Mapping

from hasten.facts.plan import Total
from hasten.facts.trials import Budget, Costs, Step, Surveyed
from hasten.report.page import words
from hasten.report.page.drawing import Axis, bar, span, swatch
from hasten.report.page.markup import Markup, Part, element, joined
from hasten.report.page.plan_evidence import Evidence
from hasten.report.page.shell import lead, section, table, two_lines

ARMS = {"plain": "as it is", "planned": "with the plan"}
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


def bars(arms: Mapping[str, Parts]) -> Markup:
    """A row for each arm: its name, its parts end to end, and their sum."""
    longest = max(sum(parts.values()) for parts in arms.values())
    rows = list[Markup]()
    for arm, parts in arms.items():
        name, whole = ARMS.get(arm, arm), words.seconds(sum(parts.values()))
        drawn = bar(list(parts.items()), longest, f"{name}: {whole}")
        rows.append(element("div", element("span", name, class_="name"), drawn, element("strong", whole)))
    return element("div", *rows, class_="two")


def way_to_the_plan(evidence: Evidence) -> Markup | None:
    """The seconds of the run after each technique; None where the records do not have them, or have nonsense."""
    way = evidence.way
    ends = [value for step in way for value in (step.total, step.low, step.high)]
    if len(way) < 2 or not all(words.known(value) is not None and value >= 0 for value in ends):
        return None
    axis, rows, before = Axis(low=0.0, high=max(ends) or 1.0), list[list[Part]](), 0.0
    for step in way:
        rows.append(_stage(step, before, axis))
        before = step.total
    last = way[-1]
    drawn = span("planned", 0.0, last.total, (last.low, last.high), axis, f"the plan: {words.seconds(last.total)}")
    rows.append(["the plan", drawn, _with_ends(last), None])
    return section(
        "From the job as it is to the plan",
        lead(
            "Seconds of the planned run as one technique after the other is added, by the ratios to the job as it is "
            "and their 95 % intervals."
        ),
        table(
            "Technique by technique",
            [("with", "name"), ("", "drawn wide"), ("the run takes", "number"), ("change", "number")],
            rows,
            "heard",
        ),
    )


def _stage(step: Step, before: float, axis: Axis) -> list[Part]:
    told = words.seconds(step.total)
    if step.choice is None:
        return [
            "the job as it is",
            span("plain", 0.0, step.total, (step.low, step.high), axis, f"the job as it is: {told}"),
            told,
            None,
        ]
    saved = step.total <= before
    kind, sign = ("saved", "−") if saved else ("lost", "+")
    drawn = span(kind, before, step.total, (step.low, step.high), axis, f"with {words.named(step.choice)}: {told}")
    change = f"{sign}{words.seconds(abs(step.total - before))}"
    return [element("code", words.named(step.choice)), drawn, _with_ends(step), change]


def _with_ends(step: Step) -> Markup:
    return two_lines(words.seconds(step.total), f"{words.seconds(step.low)} – {words.seconds(step.high)}")


def time_of_the_run(evidence: Evidence) -> Markup | None:
    confirmed, measured, surveyed = evidence.confirmed, evidence.measured, evidence.surveyed
    if confirmed is None:
        return None
    both = {"plain": confirmed.plain} | ({"planned": measured.planned} if measured is not None else {})
    parts = {arm: _parts_of_run(costs, surveyed) for arm, costs in both.items()}
    told = _paid_back(evidence.plan.total)
    if surveyed is not None and surveyed.stops_early:
        told += " All of it where early stopping does not end the run before."
    rows = _rows(RUN_PARTS, parts)
    rows.append(["most memory", *(words.size(costs.peak_bytes) for costs in both.values())])
    return section(
        "Where the time of the run goes",
        lead(
            f"{_length(surveyed)} At the start the job is built, compiled and warmed up, and caches are filled.{told}"
        ),
        bars(parts),
        table("Seconds of the planned run, by the medians of what was measured", _columns(parts), rows, "parts"),
    )


def seconds_of_the_run(evidence: Evidence) -> float | None:
    """Of the planned run as it is, by where its step was seen to spend them; None where that, or its length, is not
    known. The start is left out, which nobody timed."""
    budget, surveyed = evidence.budgets.get("plain"), evidence.surveyed
    if budget is None or surveyed is None:
        return None
    steps, evaluations = words.known(surveyed.total_steps), words.known(surveyed.evaluations)
    step, evaluation = words.known(budget.step), words.known(budget.evaluation)
    if steps is None or evaluations is None or step is None or evaluation is None:
        return None
    return words.known(steps * step + evaluations * evaluation)


def _paid_back(total: Total | None) -> str:
    if total is None:
        return ""
    if total.break_even_step is None:
        return " By shorter steps alone the plan never pays back what it costs at the start."
    step = words.known(total.break_even_step)
    return f" The plan has paid back what it costs at the start from step {words.whole(step)} on." if step else ""


def _parts_of_run(costs: Costs, surveyed: Surveyed | None) -> Parts:
    """Without the length of the run its parts are not known, and it is all steps."""
    steps = words.known(surveyed.total_steps) if surveyed is not None else None
    if surveyed is None or steps is None:
        return {"steps": max(words.known(costs.total) or 0.0, 0.0)}
    epochs, evaluations = words.known(surveyed.total_epochs) or 1.0, words.known(surveyed.evaluations) or 0.0
    found = {
        "once": words.known(costs.one_off) or 0.0,
        "steps": (words.known(costs.step) or 0.0) * steps,
        "turns": (words.known(costs.turn) or 0.0) * (epochs - 1),
        "evaluation": (words.known(costs.evaluation) or 0.0) * evaluations,
    }
    return {kind: max(value, 0.0) for kind, value in found.items()}


def _length(surveyed: Surveyed | None) -> str:
    if surveyed is None or surveyed.total_steps is None:
        return ""
    lengths = [words.many(surveyed.total_steps, "optimizer step")]
    if surveyed.total_epochs is not None:
        lengths.append(words.many(surveyed.total_epochs, "epoch"))
    return f"The planned run has {words.listed([*lengths, words.many(surveyed.evaluations, 'evaluation')])}."


def time_of_a_step(evidence: Evidence) -> Markup | None:
    budgets = {arm: evidence.budgets[arm] for arm in ARMS if arm in evidence.budgets}
    if not budgets:
        return None
    parts = {arm: _parts_of_step(budget) for arm, budget in budgets.items()}
    looked = words.listed([f"{words.many(budget.steps, 'step')} {ARMS[arm]}" for arm, budget in budgets.items()])
    rows = _rows(STEP_PARTS, parts)
    rows.append(["one evaluation", *(words.seconds(budget.evaluation) for budget in budgets.values())])
    return section(
        "Where the time of a step goes",
        lead(
            f"Seconds of one optimizer step, as means over {looked}. They say where time goes, not what a choice gains."
        ),
        bars(parts),
        table("Seconds of one optimizer step, and its share of the step", _columns(parts), rows, "parts"),
    )


def _parts_of_step(budget: Budget) -> Parts:
    return {part: max(words.known(getattr(budget, part)) or 0.0, 0.0) for part in STEP_PARTS}


def _columns(arms: Mapping[str, Parts]) -> list[tuple[str, str]]:
    return [("part", "name"), *((ARMS[arm], "number") for arm in arms)]


def _rows(names: Mapping[str, str], arms: Mapping[str, Parts]) -> list[list[Part]]:
    """A row for each part that any arm has, and one for their sum."""
    rows = list[list[Part]]()
    for part, name in names.items():
        seconds = [parts.get(part, 0.0) for parts in arms.values()]
        if any(seconds):
            cells = [_share(value, sum(parts.values())) for value, parts in zip(seconds, arms.values(), strict=True)]
            rows.append([joined([swatch(part), name]), *cells])
    sums = (words.seconds(sum(parts.values())) for parts in arms.values())
    return [*rows, [element("strong", "together"), *(element("strong", told) for told in sums)]]


def _share(value: float, whole: float) -> Part:
    return two_lines(words.seconds(value), words.share(value, whole)) if value else "none"
