"""The page of a plan: what it makes of the job, by which means, and how that is known."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from hasten.facts.choice import Preserves
from hasten.facts.plan import ProvenOn
from hasten.facts.trials import Surveyed, is_proven
from hasten.report.display import BY_WINDOWS
from hasten.report.page import words
from hasten.report.page.drawing import interval, ratio_axis
from hasten.report.page.learned import memory_over_time, what_is_learned
from hasten.report.page.markup import Markup, Part, element
from hasten.report.page.plan_evidence import Evidence, identity
from hasten.report.page.proofs import proof_of, proofs_in_short
from hasten.report.page.reached import target_sentence, time_to_the_target
from hasten.report.page.shell import document, lead, notes, pairs_of, section, table, two_lines
from hasten.report.page.times import ARMS, bars, seconds_of_the_run, time_of_a_step, time_of_the_run, way_to_the_plan
from hasten.report.page.tried import what_was_tried

USUAL_PLAN = "plan.toml"  # that a search writes where it is told no other
PLAIN_ARMS = ("plain", "plain again")


def page_of_plan(evidence: Evidence) -> str:
    """The whole page as HTML, from what is known of a plan."""
    title = f"{evidence.job or evidence.path}: hasten report"
    return document(
        title,
        _header(evidence),
        [
            _plan(evidence),
            time_to_the_target(evidence),
            way_to_the_plan(evidence),
            time_of_the_run(evidence),
            time_of_a_step(evidence),
            what_was_tried(evidence),
            what_is_learned(evidence.curves, evidence.rates),
            memory_over_time(_memory(evidence)),
            _measured(evidence),
            _next(evidence),
        ],
    )


def sentence_of(evidence: Evidence) -> str:
    """What the page says first."""
    if evidence.measured is not None:
        return words.finish_sentence(evidence.measured)
    if evidence.gained:
        return target_sentence(evidence.gained)
    if not evidence.choices and (evidence.confirmed is not None or evidence.came_to_nothing):
        return _of_no_plan(evidence)
    if evidence.plan.total is not None:
        total = evidence.plan.total
        plain = words.with_spread(total.baseline_seconds, total.baseline_between, BY_WINDOWS)
        planned = words.with_spread(total.planned_seconds, total.planned_between)
        return f"A plan that states {planned} instead of {plain}"
    if evidence.tried and not evidence.choices:
        return f"{words.many(len(evidence.tried), 'trial').capitalize()}, and no plan confirmed yet"
    if not evidence.choices:
        return "A plan without a technique: the job runs as it is"
    return f"A plan of {words.many(len(evidence.choices), 'technique')}, whose speed was not measured"


def _of_no_plan(evidence: Evidence) -> str:
    confirmed = evidence.confirmed
    if confirmed is not None:
        plain = words.with_spread(confirmed.plain.total, confirmed.plain.between, BY_WINDOWS)
        if is_proven(confirmed) and not evidence.came_to_nothing:
            return f"This job takes {plain}; a plan was proven to make it faster, and is not in this file"
        return f"This job takes {plain}; nothing that was tried makes it faster beyond doubt"
    costs, seconds = evidence.plain and evidence.plain.costs, seconds_of_the_run(evidence)
    if costs is None and seconds is None:
        return "Nothing that was tried is proven to make this job faster"
    about = words.with_spread(costs.total, costs.between, BY_WINDOWS) if costs else words.seconds(seconds)
    told = f"This job takes about {about}; nothing that was tried is proven to make it faster"
    stops_early = evidence.surveyed is not None and evidence.surveyed.stops_early
    return f"{told}; all of it where early stopping does not end the run before" if stops_early else told


def next_command(evidence: Evidence) -> str:
    """To train by a plan that was proven, or as it is where a search has found none; else to find one out."""
    job = evidence.job or "JOB"
    if evidence.gained or (evidence.measured is not None and is_proven(evidence.measured)):
        return shlex.join(["hasten", "train", job, "--plan", evidence.path])
    if evidence.came_to_nothing:
        return shlex.join(["hasten", "train", job])
    # A search never replaces a plan that it has not written.
    output = [] if evidence.path == USUAL_PLAN or evidence.by_hand else ["--output", evidence.path]
    return shlex.join(["hasten", "tune", job, *output])


def machine_of(surveyed: Surveyed | None, proven_on: ProvenOn | None) -> str:
    if surveyed is not None:
        return surveyed.machine
    if proven_on is None:
        return ""
    accelerator = proven_on.accelerator or "no accelerator"
    cores, memory = words.many(proven_on.cores, "core"), words.size(proven_on.memory_bytes)
    return f"{cores}, {memory}, {accelerator}, torch {proven_on.torch}"


def _header(evidence: Evidence) -> Markup:
    return element(
        "header",
        element("p", element("span", "hasten report", class_="brand"), evidence.job or evidence.path, class_="eyebrow"),
        element("h1", words.unbroken(sentence_of(evidence))),
        _total_bars(evidence),
        _against(evidence),
        lead(f"{target_sentence(evidence.gained)}.") if evidence.gained else None,
        _figures(evidence),
        notes(_warnings(evidence)),
    )


def _against(evidence: Evidence) -> Markup | None:
    """What the sentence compares, and where."""
    machine, confirmed = machine_of(evidence.surveyed, evidence.plan.machine), evidence.confirmed
    if confirmed is None:
        return lead("On ", element("strong", machine), ".") if machine else None
    where = element("strong", machine or "a machine that the records do not name")
    same = f". The job beside itself, where nothing differs, gave {words.measured(confirmed.noise)}."
    if evidence.measured is None:
        return lead("On ", where, same)
    pairs = words.pairs(confirmed.speedup)
    return lead(f"Against the job as it is, in {pairs} of windows side by side on ", where, same)


def _figures(evidence: Evidence) -> Markup | None:
    """The few facts by which a reader decides whether to go on."""
    if not evidence.choices or evidence.confirmed is None:
        return None
    claims = [Preserves.TRAINING if choice.preserves is None else choice.preserves for choice in evidence.choices]
    ours = set(map(identity, evidence.choices))
    tried = len({identity(trial.choice) for trial in evidence.tried if trial.verdict != "skipped"})
    costs, curves = evidence.measured, evidence.curves
    seeds = words.many(len(curves.seeds), "seed") if curves is not None else ""
    memory: Part = None
    if costs is not None:
        plain, planned = words.size(costs.plain.peak_bytes), words.size(costs.planned.peak_bytes)
        memory = two_lines(planned, f"{plain} as it is")
    items: list[tuple[str, Part]] = [
        ("in the plan", two_lines(words.many(len(ours), "choice"), f"of {tried:,} tried" if tried else None)),
        ("training keeps", two_lines(max(claims).words, "by the loosest claim of a choice")),
        ("proofs that hold", proofs_in_short(evidence)),
        ("loss", two_lines(curves.verdict, seeds) if curves is not None else None),
        ("most memory", memory),
    ]
    return element("div", pairs_of(items), class_="figures")


def _warnings(evidence: Evidence) -> list[str]:
    found, outdated = list[str](), evidence.outdated
    if evidence.edited:
        found.append(
            "The plan was changed after it was measured: the figures belong to the choices that were confirmed."
        )
    if evidence.choices and evidence.measured is None and not evidence.gained:
        found.append("No confirmation of the whole plan lies beside it, so its speed has no interval here.")
    if outdated and evidence.surveyed is None:
        left_out = f"{words.many(outdated, 'record')} {'is' if outdated == 1 else 'are'} left out"
        found.append(f"The trials beside the plan are of another job or machine: {left_out}.")
    elif outdated:
        found.append(f"{words.many(outdated, 'record')} of another job or machine were left out.")
    return found


def _memory(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """By arm. Where there is no plan, what was measured as one is nothing that it holds."""
    found = {arm: record.bytes for arm, record in evidence.memory.items()}
    return found if evidence.measured is not None else {arm: found[arm] for arm in PLAIN_ARMS if arm in found}


def _total_bars(evidence: Evidence) -> Markup | None:
    """The seconds of the planned run, with the plan's where there are any."""
    measured, total = evidence.measured, evidence.plan.total
    if measured is not None:
        both = (measured.plain.total, measured.planned_seconds)
    elif total is not None:
        both = (total.baseline_seconds, total.planned_seconds)
    elif evidence.confirmed is not None:
        both = (evidence.confirmed.plain.total,)
    else:
        return None
    return bars({arm: {arm: words.known(value) or 0.0} for arm, value in zip(ARMS, both, strict=False)})


def _plan(evidence: Evidence) -> Markup | None:
    if not evidence.plan.choices:
        return (
            section("The plan", lead("The plan has no technique: the job runs as it is."))
            if evidence.confirmed or evidence.came_to_nothing
            else None
        )
    measured = evidence.measured
    earned = {identity(item.choice): item for item in measured.earned} if measured is not None else {}
    kind = "kept" if measured is not None and is_proven(measured) else "other"
    axis = ratio_axis([item.speedup for item in earned.values()])
    rows = list[list[Part]]()
    for planned in evidence.plan.choices:
        choice, found = planned.choice, earned.get(identity(planned.choice))
        claim = "not stated" if choice.preserves is None else choice.preserves.words
        if found is not None and found.speedup.pairs > 0:
            worth: Part = two_lines(
                words.ratio(found.speedup), f"{words.interval(found.speedup)}, {words.pairs(found.speedup)}"
            )
            drawn: Part = interval(found.speedup, axis, kind, f"worth {words.measured(found.speedup)}")
        elif found is not None:
            worth, drawn = two_lines("needed", "without it the plan does not run"), None
        else:
            worth = (
                two_lines(words.ratio(planned.speedup), f"{words.interval(planned.speedup)}, as the plan states")
                if planned.speedup
                else None
            )
            drawn = None
        rows.append([element("code", words.named(choice)), drawn, worth, claim, proof_of(evidence, planned)])
    told = (
        "What each is worth in the whole plan: how many times as long the planned run takes without it. "
        if earned
        else ""
    )
    return section(
        "The plan",
        lead(f"{told}Each claims to preserve something of the training, and is held to it on this job."),
        table(
            "Techniques of the plan",
            [("technique", "name"), ("", "drawn"), ("worth", "number"), ("claims", "claim"), ("proof", "")],
            rows,
            "heard",
        ),
    )


def _measured(evidence: Evidence) -> Markup:
    surveyed, noise = evidence.surveyed, evidence.noise
    job = surveyed.fingerprint if surveyed is not None else evidence.plan.job
    items: list[tuple[str, Part]] = [("machine", machine_of(surveyed, evidence.plan.machine)), ("plan", evidence.path)]
    if surveyed is not None:
        versions = ", ".join(f"{name} {text}" for name, text in surveyed.environment.items())
        items += [
            ("device", surveyed.device),
            ("versions", versions),
            ("allowed", f"{surveyed.ceiling.words}, or stricter"),
        ]
    if job is not None:
        batches = f"batches of {words.whole(job.batch_size)}"
        samples = "samples as they come" if job.samples is None else words.many(job.samples, "sample")
        items.append(
            (
                "job",
                f"{words.many(job.parameters, 'parameter')}, {samples}, {batches}; shapes {job.shapes}",
            )
        )
    if noise is not None:
        told = f"{words.measured(noise.speedup)}, in windows of {words.many(noise.window_steps, 'step')}"
        items.append(("noise floor", f"the job beside itself, before the search: {told}"))
    return section("Where this was measured", pairs_of(items), _how(evidence))


def _how(evidence: Evidence) -> Markup | None:
    if evidence.noise is None and evidence.confirmed is None:
        return None
    return lead(
        "Two versions of the job take turns, window by window, on one machine. A ratio of twelve pairs of windows is "
        "their median, and its 95 % interval comes from resampling them; one of fewer is their geometric mean, with "
        "Student's interval. A ratio above 1 is faster. Where the interval contains 1, there is no difference that can "
        "be told from noise."
    )


def _next(evidence: Evidence) -> Markup:
    return section("Next", element("p", element("code", next_command(evidence), class_="command")))
