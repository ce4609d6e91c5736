"""One search from its start to its result on the terminal, whatever is tuned."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.cli.tuning.trials_file import Trials
from hasten.facts.choice import Preserves
from hasten.facts.plan import DEFAULT_PLAN
from hasten.facts.trials import trials_beside
from hasten.report.display import interval, listed, ratio
from hasten.report.plan_sentence import NOTHING_PROVEN, NOTHING_TRIED, pays, results_with, search_sentence
from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import Lines
from hasten.report.terminal.search_progress import SearchProgress

if TYPE_CHECKING:
    from hasten.facts.plan import Plan, Rejected
    from hasten.facts.trials import Doing, Record, Tried
    from hasten.tuning.proof.claim_proofs import Prover
    from hasten.tuning.search.plan_search import Found
    from hasten.tuning.trials.arms import Arms
    from hasten.tuning.trials.other_programs import OtherPrograms

ROUNDED_UP = 60.0  # seconds of a longer search
MUCH_ELSE = 0.05  # share of the CPU used by other programs
SECONDS = 60.0
CEILING = "statistics"  # of --allow
_READ_BY = "read by hasten report and by a longer search; you may delete it"
MORE = "a longer search for what is not tried or not proven, which repeats no trial:"
INTERRUPTED_EARLY = "Interrupted before a plan was proven: run the same command to continue"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """file: of the plan. allow: the name of a class of Preserves. began: by time.monotonic()."""

    file: Path
    seconds: float
    allow: str
    busy: bool
    began: float

    def words(self, seconds: float) -> list[str]:
        """The options of a command that continues the search, for so many seconds; without those that are the
        default."""
        output = [] if str(self.file) == DEFAULT_PLAN else ["--output", str(self.file)]
        allow = [] if self.allow == CEILING else ["--allow", self.allow]
        longer = [] if seconds == SECONDS else ["--seconds", str(seconds).removesuffix(".0")]
        return [*output, *allow, *longer, *(["--busy"] if self.busy else [])]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is tuned. name: as on the command line. plain: the command that trains it without a plan. arms: starts its
    trials. prover: makes what proves gradients. nothing_proven: the headline where nothing is faster.

    again: (options of hasten) -> the words of the command that continues the search. following: (the plan's file; None
    where there is no plan) -> the command to run next. completed: (plan) -> with what the subject adds. written: (plan,
    its file, where to report) -> what is said of further files that belong to it, each with a label; there is nowhere
    to report where the search was interrupted, and is to end at once. refuted: after that, why what was found does not
    hold; "" where it does. fields: then, further ones of the answer in JSON.
    """

    name: str
    plain: str
    arms: Callable[[OtherPrograms], Arms]
    prover: Callable[[Arms, Path], Prover]
    again: Callable[[list[str]], list[str]]
    following: Callable[[Path | None], str]
    completed: Callable[[Plan], Plan] = lambda plan: plan
    written: Callable[[Plan, Path, Callable[[Doing], None] | None], Lines] = lambda plan, file, report: []
    nothing_proven: str = NOTHING_PROVEN
    refuted: Callable[[], str] = lambda: ""
    fields: Callable[[], dict[str, Any]] = dict


def search(subject: Subject, asked: Asked, output: CommandOutput) -> Found:
    """Search, write the plan, and show the result."""
    from hasten.checkpoint.plan_output import held_place, write_found_plan
    from hasten.tuning.search.found_plan import faster_and_rejected, plan_found
    from hasten.tuning.trials.other_programs import OtherPrograms

    screen, file, further = SearchProgress(asked.seconds, is_shown=not output.quiet), asked.file, Lines()
    with held_place(file), closing(Trials(file)) as trials, closing(screen):
        others = OtherPrograms(None if asked.busy else asked.seconds, screen.doing)
        found = _searched(subject, asked, others, trials, screen)
        log, surveyed = found.log, found.profile.surveyed
        plan = subject.completed(plan_found(surveyed, found.proven, log.tried, log.proofs, found.gained))
        written = found.has_plan or not found.interrupted
        if written:
            write_found_plan(plan, file)
            further = subject.written(plan, file, None if found.interrupted else screen.doing)
    sentence = (
        _sentence(found, others.share, subject.nothing_proven) if written else Sentence(headline=INTERRUPTED_EARLY)
    )
    if refuted := subject.refuted():
        sentence = Sentence(headline=f"Not accepted: {refuted}", small_print=f"in its trials: {sentence.headline}")
    unproven = faster_and_rejected(plan, log.tried) if written else []

    def again(seconds: float) -> str:
        return shlex.join(subject.again(asked.words(seconds)))

    following = subject.following(file if found.has_plan else None) if written else again(asked.seconds)
    longer = max(4 * asked.seconds, ROUNDED_UP * math.ceil(found.log.needed_seconds / ROUNDED_UP))
    facts = _facts(found, unproven, file if written else None, further, again(longer))
    if found.proven is not None and not refuted and (after := pays(found.proven, time.monotonic() - asked.began)):
        facts.insert(0, ("pays", after))
    answer = _answer(found, plan, file if written else None)
    output.result(sentence, facts, following, {**answer, **subject.fields()})
    return found


def _facts(found: Found, unproven: Sequence[Rejected], written: Path | None, further: Lines, again: str) -> Lines:
    """unproven: what was shown as faster and is not in the plan. written: the plan; None where none was. further: files
    beside it. again: the command that continues the search."""
    machine = found.profile.surveyed.machine
    lines = [("machine", machine)] if written is not None else []
    if written is not None:
        lines += [("plan", str(written)), ("trials", f"{trials_beside(written)}, {_READ_BY}")]
    lines += further
    if choices := [str(each) for each in found.choices]:
        lines.append(("choices", listed(choices, most=len(choices))))
    results = results_with(found.choices, found.log.proofs)
    lines += [("" if number else "results", each) for number, each in enumerate(results)]
    stopped = {each.choice.technique for each in found.log.tried if each.cut_short}
    names = [] if found.interrupted else found.not_reached
    if late := [name for name in names if name not in stopped]:
        lines.append(("not tried", f"no time left: {', '.join(late)}"))
    if apart := [] if found.interrupted else found.not_combined:
        trials = ", ".join(map(_trial, apart))
        lines.append(("not tried", f"no time left to try together with what joined the plan: {trials}"))
    if early := [name for name in names if name in stopped]:
        lines.append(("stopped", f"before its trial gave a result: {', '.join(early)}"))
    for each in unproven:
        lines.append(("not proven", f"{each.what}: {each.reason}"))
    if names or apart or unproven:
        lines += [("optional", MORE), ("continue", again)]
    return lines


def _trial(tried: Tried) -> str:
    """A choice, and what its last trial has shown."""
    found = tried.speedup if tried.verdict == "faster" else None
    shown = tried.verdict if found is None else f"{ratio(found)}, {interval(found)}"
    base = f"on top of {listed([*map(str, tried.on)])}" if tried.on else "alone"
    return f"{tried.choice} ({base} {shown})"


def _searched(subject: Subject, asked: Asked, others: OtherPrograms, trials: Trials, screen: SearchProgress) -> Found:
    from hasten.tuning.search.plan_search import Search
    from hasten.tuning.search.search_log import Options
    from hasten.tuning.trials.trial_outcome import ArmFailed

    def keep(record: Record) -> None:
        trials.keep(record)
        screen.record(record)

    run = Search(
        subject.arms(others),
        subject.name,
        Options(seconds=asked.seconds, ceiling=Preserves[asked.allow.upper()]),
        keep=keep,
        report=screen.doing,
        earlier=trials.earlier,
        began=asked.began,
        prover=subject.prover,
    )
    try:
        return run()
    except ArmFailed as failure:
        raise failure.as_error(subject.plain) from failure


def _sentence(found: Found, others: float, nothing_proven: str) -> Sentence:
    """others: share of the CPU that other programs used."""
    from hasten.report.display import duration, percent
    from hasten.tuning.search.objective import least_visible

    gained = [found.gained.reached] if found.gained else []
    if found.log.needed_seconds and all(each.verdict == "skipped" for each in found.log.tried):
        nothing_proven = f"{NOTHING_TRIED} {duration(found.log.needed_seconds)}"
    plain, stops_early = found.profile.costs, found.profile.surveyed.stops_early
    between = None if plain is None else plain.between
    result = search_sentence(
        found.proven,
        _baseline_seconds(found),
        gained,
        between=between,
        stops_early=stops_early,
        nothing_proven=nothing_proven,
    )
    if others <= MUCH_ELSE:
        return result
    seen = None if found.has_plan else least_visible(found.log.tried)
    blind = "" if seen is None or seen < 1.005 else f": gains below about {seen:.2f}× could not be seen"
    return replace(result, small_print=f"{result.small_print}\nother programs used {percent(others)} of the CPU{blind}")


def _baseline_seconds(found: Found) -> float:
    """Of the whole planned run without a plan, predicted."""
    profile = found.profile
    if profile.costs is not None:
        return profile.costs.total
    return profile.length.process_seconds + profile.start_seconds + profile.run_seconds


def _answer(found: Found, plan: Plan, written: Path | None) -> dict[str, Any]:
    """written: where the plan is; None where none was written."""
    return {
        "interrupted": found.interrupted,
        "job": found.profile.surveyed.job,
        "machine": found.profile.surveyed.machine,
        "plan": written,
        "baseline_seconds": _baseline_seconds(found),
        "total": None if plan.total is None else asdict(plan.total),
        "speedup": None if found.proven is None else asdict(found.proven.speedup),
        "target": [] if found.gained is None else [asdict(found.gained.reached)],
        "choices": [asdict(each.choice) for each in plan.choices],
        "rejected": [
            *[asdict(each) for each in plan.rejected],
            *[{"technique": name, "reason": why, "value": None} for name, why in plan.not_tried.items()],
        ],
        "not_reached": found.not_reached,
        "not_combined": [each.choice.technique for each in found.not_combined],
    }
