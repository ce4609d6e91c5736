"""The page of a plan: what it makes of the job, by which means, and how that is known."""

from __future__ import annotations

import shlex

from hasten.facts.choice import Preserves
from hasten.facts.plan import ProvenOn, Total
from hasten.facts.trials import Confirmed, Surveyed
from hasten.report.page import words
from hasten.report.page.drawing import interval, ratio_axis
from hasten.report.page.evidence import Evidence, identity
from hasten.report.page.learned import memory_over_time, what_is_learned
from hasten.report.page.markup import Markup, Part, element
from hasten.report.page.reached import target_sentence, time_to_the_target
from hasten.report.page.shell import document, lead, notes, pairs_of, section, table, two_lines
from hasten.report.page.times import ARMS, bars, time_of_a_step, time_of_the_run, way_to_the_plan
from hasten.report.page.tried import proof_of, what_was_tried


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
            memory_over_time({arm: record.bytes for arm, record in evidence.memory.items()}),
            _measured(evidence),
            _next(evidence),
        ],
    )


def sentence_of(evidence: Evidence) -> str:
    """What the page says first."""
    if evidence.gained and (evidence.confirmed is None or not evidence.confirmed.choices):
        return target_sentence(evidence.gained)
    if evidence.confirmed is not None and evidence.choices:
        return words.finish_sentence(evidence.confirmed)
    if evidence.confirmed is not None:
        plain = words.seconds(evidence.confirmed.plain.total)
        return f"This job takes {plain}; nothing that was tried makes it faster beyond doubt"
    if evidence.plan.total is not None:
        total = evidence.plan.total
        plain, planned = words.seconds(total.baseline_seconds), words.seconds(total.planned_seconds)
        return f"A plan that states {planned} instead of {plain}"
    if evidence.tried:
        return f"{words.many(len(evidence.tried), 'trial').capitalize()}, and no plan confirmed yet"
    return f"A plan of {words.many(len(evidence.choices), 'technique')}, whose speed was not measured"


def next_command(evidence: Evidence) -> str:
    """To train by a plan that was confirmed; else to find one out."""
    job = evidence.job or "JOB"
    if evidence.confirmed is not None and evidence.choices:
        return shlex.join(["hasten", "train", job, "--plan", evidence.path])
    return shlex.join(["hasten", "tune", job])


def machine_of(surveyed: Surveyed | None, proven_on: ProvenOn | None) -> str:
    if surveyed is not None:
        return surveyed.machine
    if proven_on is None:
        return ""
    accelerator = proven_on.accelerator or "no accelerator"
    cores, memory = words.many(proven_on.cores, "core"), words.size(proven_on.memory_bytes)
    return f"{cores}, {memory}, {accelerator}, torch {proven_on.torch}"


def _header(evidence: Evidence) -> Markup:
    confirmed, machine = evidence.confirmed, machine_of(evidence.surveyed, evidence.plan.machine)
    against = None
    if confirmed is not None:
        same = words.measured(confirmed.noise)
        against = lead(
            f"Against the job as it is, in {words.pairs(confirmed.speedup)} of windows side by side on ",
            element("strong", machine or "a machine that the records do not name"),
            f". The job beside itself, where nothing differs, gave {same}.",
        )
    elif machine:
        against = lead("On ", element("strong", machine), ".")
    return element(
        "header",
        element("p", element("span", "hasten report", class_="brand"), evidence.job or evidence.path, class_="eyebrow"),
        element("h1", words.unbroken(sentence_of(evidence))),
        _two_bars(confirmed, evidence.plan.total),
        against,
        lead(f"{target_sentence(evidence.gained)}.") if evidence.gained else None,
        _figures(evidence),
        notes(_warnings(evidence)),
    )


def _figures(evidence: Evidence) -> Markup | None:
    """The few facts by which a reader decides whether to go on."""
    if not evidence.choices or evidence.confirmed is None:
        return None
    claims = [Preserves.TRAINING if choice.preserves is None else choice.preserves for choice in evidence.choices]
    ours = set(map(identity, evidence.choices))
    proofs = [record.passes for record in evidence.proven if identity(record.choice) in ours]
    tried = len({identity(trial.choice) for trial in evidence.tried if trial.verdict != "skipped"})
    costs, curves = evidence.confirmed, evidence.curves
    seeds = words.many(len(curves.seeds), "seed") if curves is not None else ""
    items: list[tuple[str, Part]] = [
        ("in the plan", two_lines(words.many(len(ours), "choice"), f"of {tried:,} tried" if tried else None)),
        ("training keeps", two_lines(max(claims).words, "by the loosest claim of a choice")),
        ("proofs that hold", two_lines(f"{sum(proofs)} of {len(proofs)}", "on this job") if proofs else None),
        ("loss", two_lines(curves.verdict, seeds) if curves is not None else None),
        (
            "most memory",
            two_lines(words.size(costs.planned.peak_bytes), f"{words.size(costs.plain.peak_bytes)} as it is"),
        ),
    ]
    return element("div", pairs_of(items), class_="figures")


def _warnings(evidence: Evidence) -> list[str]:
    found = list[str]()
    if evidence.edited:
        found.append(
            "The plan was changed after it was measured: the figures belong to the choices that were confirmed."
        )
    if evidence.confirmed is None and not evidence.gained and (evidence.choices or evidence.tried):
        found.append("No confirmation of the whole plan lies beside it, so its speed has no interval here.")
    if evidence.outdated:
        found.append(f"{words.many(evidence.outdated, 'record')} of another job or machine were left out.")
    return found


def _two_bars(confirmed: Confirmed | None, total: Total | None) -> Markup | None:
    if confirmed is not None:
        both = (confirmed.plain.total, confirmed.planned.total)
    elif total is not None:
        both = (total.baseline_seconds, total.planned_seconds)
    else:
        return None
    return bars({arm: {arm: words.known(value) or 0.0} for arm, value in zip(ARMS, both, strict=True)})


def _plan(evidence: Evidence) -> Markup | None:
    if not evidence.plan.choices:
        return (
            section("The plan", lead("The plan has no technique: the job runs as it is."))
            if evidence.confirmed
            else None
        )
    earned = {identity(item.choice): item for item in evidence.confirmed.earned} if evidence.confirmed else {}
    axis = ratio_axis([item.speedup for item in earned.values()])
    rows = list[list[Part]]()
    for planned in evidence.plan.choices:
        choice, found = planned.choice, earned.get(identity(planned.choice))
        claim = "not stated" if choice.preserves is None else choice.preserves.words
        if found is not None and found.speedup.pairs > 0:
            worth: Part = two_lines(
                words.ratio(found.speedup), f"{words.interval(found.speedup)}, {words.pairs(found.speedup)}"
            )
            drawn: Part = interval(found.speedup, axis, "kept", f"worth {words.measured(found.speedup)}")
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
