"""The page of a plan: what it gains, by which techniques, and how that is known."""

from __future__ import annotations

import shlex

from hasten.facts.choice import Preserves
from hasten.facts.formatting import byte_size
from hasten.facts.plan import DEFAULT_PLAN, Fingerprint, PlannedChoice, ProvenOn
from hasten.facts.trials import NO_GAIN_ALONE, Curves, Proven, Surveyed, Verdict, is_gain, is_proven, verdict_of
from hasten.report.display import fixed, interval, listed, many, measured, ratio
from hasten.report.page.charts import Axis, Line, chart, ratio_axis
from hasten.report.page.page_model import Cell, Page, Pair, Picture, Section, filled_table
from hasten.report.page.plan_evidence import Evidence, identity
from hasten.report.page.render import html_of
from hasten.report.page.run_times import ARMS, bars, time_of_a_step, time_of_the_run
from hasten.report.page.tried_choices import (
    SPEEDUP_COLUMNS,
    speedup_cells,
    time_to_the_target,
    what_was_not_tried,
    what_was_tried,
)
from hasten.report.plan_sentence import (
    NO_FASTER_SCRIPT,
    NOTHING_PROVEN,
    plan_sentence,
    search_sentence,
    stated_sentence,
    target_sentence,
)
from hasten.report.sentence import Sentence

_BEYOND_ROUNDING = "numbers differ beyond rounding"
_ANSWERS = {
    "holds": ("✓", "kept"),
    "inconclusive": ("·", "other"),
    "does not hold": ("✕", "failed"),
    "not answered": ("…", "other"),
}
"""Answer of a proof -> its sign and its class. That no harm was measured is no proof of equivalence, and does not count
as one; an arm that failed on the way says nothing about the choice."""


def page_of(evidence: Evidence) -> str:
    """The whole page as HTML, from what is known of a plan."""
    sentence = sentence_of(evidence)
    sections = [
        plan_section(evidence),
        time_to_the_target(evidence),
        time_of_the_run(evidence),
        time_of_a_step(evidence),
        what_was_tried(evidence),
        what_was_not_tried(evidence),
        _learned(evidence.curves),
        _measured(evidence),
    ]
    return html_of(
        Page(
            subject=evidence.job or evidence.path,
            headline=sentence.headline,
            small_print=[*small_print(sentence), *_circumstances(evidence)],
            bars=_total_bars(evidence),
            notes=_warnings(evidence),
            command=next_command(evidence),
            sections=[section for section in sections if section is not None],
        )
    )


def sentence_of(evidence: Evidence) -> Sentence:
    """What the page says first."""
    confirmed = evidence.confirmed
    if evidence.measured is not None:
        return plan_sentence(evidence.measured)
    if evidence.gained:
        return target_sentence(evidence.gained)
    if evidence.came_to_nothing or (not evidence.choices and confirmed is not None and not is_proven(confirmed)):
        costs = confirmed.plain if confirmed is not None else evidence.plain.costs if evidence.plain else None
        nothing = NOTHING_PROVEN if evidence.plan.script is None else NO_FASTER_SCRIPT
        if costs is None:
            return Sentence(headline=nothing)
        return search_sentence(
            None, costs.total, between=costs.between, stops_early=evidence.stops_early, nothing_proven=nothing
        )
    if evidence.plan.total is not None:
        return stated_sentence(evidence.plan.total)
    if evidence.tried and not evidence.choices:
        return Sentence(headline=f"No plan yet, after {many(len(evidence.tried), 'trial')}")
    if not evidence.choices:
        return Sentence(headline="A plan without a technique: the job runs unchanged")
    return Sentence(headline=f"Not measured: a plan of {many(len(evidence.choices), 'technique')}")


def next_command(evidence: Evidence) -> str:
    """To train, by the plan if it is proven; to search where no search has ended."""
    if evidence.trains_plainly:
        return evidence.trains_plainly
    if evidence.plan.script is not None and evidence.surveyed is not None:
        planned = ["--plan", evidence.path] if evidence.choices else []
        return shlex.join(["hasten", "run", *planned, *shlex.split(evidence.surveyed.job)])
    job = evidence.job or "JOB"
    if evidence.gained or evidence.has_proven_speed:
        return shlex.join(["hasten", "train", job, "--plan", evidence.path, *evidence.options])
    if evidence.came_to_nothing:
        return shlex.join(["hasten", "train", job, *evidence.options])
    # A search never replaces a plan that it has not written.
    output = [] if evidence.path == DEFAULT_PLAN or evidence.surveyed is None else ["--output", evidence.path]
    words = [job] if ".py:" in job else shlex.split(job)  # of a script, with its own options
    return shlex.join(["hasten", "tune", *output, *words, *evidence.options])


def _machine(surveyed: Surveyed | None, proven_on: ProvenOn | None) -> str:
    if surveyed is not None:
        return surveyed.machine
    if proven_on is None:
        return ""
    accelerator = proven_on.accelerator or "no accelerator"
    memory = byte_size(proven_on.memory_bytes)
    return f"{many(proven_on.cores, 'core')}, {memory}, {accelerator}, torch {proven_on.torch}"


def _total_bars(evidence: Evidence) -> list[tuple[str, Picture, str]]:
    """The seconds of the planned run, with the plan's where the headline states a difference."""
    both, confirmed, total = (), evidence.measured, evidence.plan.total
    if confirmed is not None and verdict_of(confirmed) in (Verdict.FASTER, Verdict.SLOWER):
        both = (confirmed.plain.total, confirmed.planned_seconds)
    elif confirmed is None and total is not None:
        both = (total.baseline_seconds, total.planned_seconds)
    elif evidence.confirmed is not None:
        both = (evidence.confirmed.plain.total,)
    return bars({arm: {arm: value} for arm, value in zip(ARMS, both, strict=False)})


def small_print(sentence: Sentence) -> list[str]:
    """Each line as a sentence of its own; empty where there is none."""
    return [f"{line[0].upper()}{line[1:]}." for line in filter(None, sentence.small_print.split("\n"))]


def _circumstances(evidence: Evidence) -> list[str]:
    """What the headline compares, and where; and what else the plan changes."""
    where, confirmed = _machine(evidence.surveyed, evidence.plan.machine), evidence.confirmed
    choices = [str(choice) for choice in evidence.choices]
    compared = "Compared with the baseline on" if evidence.measured is not None else "On"
    found = [f"{compared} {where}."] if where else []
    if choices:
        found.insert(0, f"The plan: {listed(choices, most=len(choices))}.")
    if confirmed is not None:
        found.append(f"The baseline compared with itself: {measured(confirmed.noise)}.")
    if not evidence.choices and (evidence.came_to_nothing or confirmed is not None):
        found.append("The plan has no technique: the job runs unchanged.")
    gained = [f"{target_sentence(evidence.gained)}."] if evidence.gained else []
    return [" ".join(found), *gained] if found else gained


def _warnings(evidence: Evidence) -> list[str]:
    found = list[str]()
    if evidence.edited:
        found.append("The plan was edited after it was measured. The figures belong to the choices that were measured.")
    if evidence.plan.total is not None and evidence.measured is None and not evidence.gained:
        found.append("The plan was not measured as a whole, so its speed has no interval.")
    return found


# ── the plan's choices and their proofs ─────────────────────────────────────────────────────────────────────────────


def plan_section(evidence: Evidence) -> Section | None:
    """What the plan has chosen, and how that is known; None where it has chosen nothing."""
    if not evidence.plan.choices:
        return None
    earned = evidence.measured.earned if evidence.measured is not None else ()
    worth = "Each ratio compares the plan with the same plan without that choice. " if earned else ""
    axis = ratio_axis(item.speedup for item in earned or evidence.plan.choices)
    columns = [("technique", "name"), *SPEEDUP_COLUMNS, ("claims", "claim"), ("check on this job", "reason")]
    rows = [_row_of(evidence, planned, axis) for planned in evidence.plan.choices]
    return Section(
        title="The plan",
        lead=worth + ("What each choice claims to preserve was checked on this job." if evidence.surveyed else ""),
        table=filled_table("Techniques of the plan", columns, rows, "choices"),
    )


def _row_of(evidence: Evidence, planned: PlannedChoice, axis: Axis) -> list[Cell | str]:
    choice, stated = planned.choice, planned.speedup
    earned = evidence.measured.earned if evidence.measured is not None else ()
    found = next((each.speedup for each in earned if identity(each.choice) == identity(choice)), None)
    proven = evidence.has_proven_speed if found is not None else evidence.plan.total is not None
    alone = found or stated
    idle = proven and alone is not None and alone.pairs > 0 and not is_gain(alone)
    if found is not None and found.pairs > 0:
        worth = speedup_cells(found, axis, "kept" if proven and not idle else "other")
    elif found is not None:
        worth = ["", Cell(text="needed", small="without it the plan does not run")]
    elif stated is not None:
        drawn, _ = speedup_cells(stated, axis, "other")
        worth = [drawn, Cell(text=ratio(stated), small=f"{interval(stated)}, as the plan states")]
    else:
        worth = ["", ""]
    differs = _BEYOND_ROUNDING if choice.preserves is Preserves.STATISTICS else ""
    claim = Cell(text="not stated" if choice.preserves is None else choice.preserves.words, small=differs)
    name = Cell(text=str(choice), small=NO_GAIN_ALONE if idle else "", kind="code")
    return [name, *worth, claim, _proof_of(evidence, planned)]


def _answer(record: Proven) -> str:
    if record.unanswered:
        return "not answered"
    if not record.passes:
        return "does not hold"
    return "inconclusive" if record.inconclusive else "holds"


def _proof_of(evidence: Evidence, planned: PlannedChoice) -> Cell | str:
    """Whether the choice's claim held on this job; of a proof that only the plan states, its figures."""
    name, stated = identity(planned.choice), planned.proof
    record = next((record for record in evidence.proven if identity(record.choice) == name), None)
    if record is not None:
        answer = _answer(record)
        small = f"by its loss: {record.reason}" if record.by_losses else record.reason
        sign, style = _ANSWERS[answer]
        return Cell(text=f"{sign} {answer}", small=small, kind=f"verdict {style}")
    if stated is not None:
        error = _error(stated.gradient_error, stated.bound)
        small = error if stated.losses is None else f"by its loss: {stated.losses}"
        return Cell(text="as the plan states", small=small)
    changes = planned.choice.preserves in (None, Preserves.TRAINING)
    return "judged by the time to the target" if changes and evidence.gained else "not checked"


def _error(error: float | None, bound: float | None) -> str:
    if error is None:
        return ""
    return f"gradient error {fixed(error)} × the baseline's" + (f" (limit {fixed(bound)} ×)" if bound else "")


# ── losses, and where all this was measured ─────────────────────────────────────────────────────────────────────────


def _learned(curves: Curves | None) -> Section | None:
    if curves is None:
        return None
    arms = (("baseline", "plain", curves.plain), ("with the plan", "planned", curves.planned))
    lines = [
        Line(label="" if number else f"{label} ({many(len(found), 'seed')})", kind=kind, points=[*enumerate(curve, 1)])
        for label, kind, found in arms
        for number, curve in enumerate(found)
    ]
    return Section(
        title="Training loss",
        lead=f"{curves.verdict.capitalize()}. {curves.sentence[:1].upper()}{curves.sentence[1:]}",
        charts=chart("Training loss of the baseline and with the plan", lines, "training loss"),
    )


_METHOD = (
    "Two versions of the job take turns on one machine. A timing is of a few steps; neighbouring timings make a pair. "
    "From twelve pairs on, the ratio is their median with a bootstrap interval. From fewer, it is their geometric mean "
    "with Student's interval. A ratio above 1 is faster. An interval that contains 1 shows no difference."
)


def _measured(evidence: Evidence) -> Section | None:
    surveyed, noise, plan = evidence.surveyed, evidence.noise, evidence.plan
    if surveyed is None and plan.machine is None and plan.job is None:
        return None
    pairs: list[Pair] = [("machine", _machine(surveyed, plan.machine)), ("plan", evidence.path)]
    if surveyed is not None:
        versions = ", ".join(f"{name} {text}" for name, text in surveyed.environment.items())
        pairs += [("device", surveyed.device), ("versions", versions)]
        pairs.append(("choices allowed", f"{surveyed.ceiling.words}, or stricter"))
    job = surveyed.fingerprint if surveyed is not None else plan.job
    if job is not None:
        pairs.append(("job", _job(job)))
    if noise is not None:
        each = f"each timing of {many(noise.window_steps, 'step')}"
        itself = f"the baseline compared with itself before the search: {measured(noise.speedup)}, {each}"
        pairs.append(("measurement error", itself))
    lead = _METHOD if noise is not None or evidence.confirmed is not None else ""
    return Section(title="Machine and method", lead=lead, pairs=pairs)


def _job(job: Fingerprint) -> str:
    samples = "no known number of samples" if job.samples is None else many(job.samples, "sample")
    return f"{many(job.parameters, 'parameter')}, {samples}, batches of {job.batch_size:,}; shapes {job.shapes}"
