"""Whether a search keeps a choice that does nothing, or one that makes steps slower.

    python -m bench.tuner --aa 100

The job of tuner_jobs.busy computes matrix products and no denormal number, so flush_denormals can change nothing in it:
what a search sees of that choice is the noise of real processes. The same choice, seen from inside, makes other jobs 5,
10 and 30 % slower. Each search is a whole one, with the proofs and the end; only what it may try is that one choice.

Every search is written down as soon as it is over, and a later run goes on from there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.judge import share_interval
from bench.record import PACKAGES, Target, environment, head, keep_to_one_source, target_table, write_folder

from hasten.errors import InvalidMeasurement
from hasten.facts.machine import read_machine
from hasten.facts.trials import Record, Tried
from hasten.report.terminal.progress_bar import ProgressBar
from hasten.tuning.search.plan_search import Search
from hasten.tuning.search.search_log import Options
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.other_programs import OtherPrograms

JOBS = Path(__file__).resolve().with_name("tuner_jobs.py")
CHOICE = "flush_denormals"
NOTHING, HARMS = "nothing", ("slower_by_5", "slower_by_10", "slower_by_30")
MOST_KEPT = 0.05  # share of the searches among what does nothing
HARMFUL_SEARCHES = 20  # in all, shared out among the harms
Line = dict[str, Any]


def search_once(function: str) -> Line:
    """One search: what it has kept, and what it saw of the choice."""
    job, records, began = f"{JOBS}:{function}", list[Record](), time.monotonic()
    options = Options(only=(CHOICE,))
    arms = Arms(job, other_programs=OtherPrograms(options.seconds))
    found = Search(arms, job, options, keep=records.append, report=lambda _: None, earlier=lambda _: [])()
    tried = trials_of(records)
    return {
        "job": function,
        "kept": [] if found.proven is None else [str(choice) for choice in found.proven.choices],
        "tried": [{"verdict": each.verdict, "reason": each.reason} for each in tried],
        "seen": [None if each.speedup is None else asdict(each.speedup) for each in tried],
        "records": [type(record).__name__ for record in records],
        "seconds": time.monotonic() - began,
    }


def trials_of(records: Iterable[Record]) -> list[Tried]:
    """Raises InvalidMeasurement where the choice was never measured: a search that skips it keeps nothing either."""
    tried = [record for record in records if isinstance(record, Tried)]
    if all(each.speedup is None for each in tried):
        reasons = "; ".join(each.reason for each in tried) or "it was not even proposed"
        raise InvalidMeasurement(
            f"the search has not measured {CHOICE}: {reasons}", where=str(JOBS), fix="mend the job, so that it is tried"
        )
    return tried


def search_nothing(folder: Path, searches: int, records: Path | None) -> None:
    """Search until there are so many among what does nothing and HARMFUL_SEARCHES among what harms; write a record,
    but for a quick run (None)."""
    lines = searched(folder / "aa", wanted(searches, HARMFUL_SEARCHES if records is not None else len(HARMS)))
    found = targets(lines)
    for target in found:
        print(f"{target.name}: {target.value:g}, {target.outcome}", flush=True)
    print(interval(lines), flush=True)
    if records is None:
        print("--quick judges nothing: no record was written", flush=True)
        return
    keep_to_one_source(folder)  # half an hour has passed
    print(f"written: {written(lines, found, searches, records)}", flush=True)


def wanted(searches: int, harmful: int) -> list[str]:
    """The job of every search; harms in turns."""
    return [NOTHING] * searches + [HARMS[number % len(HARMS)] for number in range(harmful)]


def searched(folder: Path, jobs: Sequence[str]) -> list[Line]:
    """One line for each job, those that the folder holds already first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "searches.jsonl"
    known = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    lines = list[Line]()
    waiting = ProgressBar(f"{len(jobs)} searches")
    try:
        with path.open("a", encoding="utf-8") as file:
            for number, job in enumerate(jobs):
                line = next((each for each in known if each["job"] == job), None)
                if line is None:
                    line = search_once(job)
                    file.write(f"{json.dumps(line)}\n")
                    file.flush()
                else:
                    known.remove(line)
                lines.append(line)
                waiting(number + 1, len(jobs))
    finally:
        waiting.close()
    return lines


def targets(lines: Sequence[Line]) -> list[Target]:
    """Counts, so they have no spread; how sure they are is said by `interval`."""
    found = list[Target]()
    for job in (NOTHING, *HARMS):
        mine = [line for line in lines if line["job"] == job]
        kept = sum(bool(line["kept"]) for line in mine)
        bound = MOST_KEPT * len(mine) if job == NOTHING else 0
        name = f"{job}: searches of {len(mine)} that kept it"
        if mine:
            found.append(Target(name=name, bound=bound, at_most=True, low=kept, value=kept, high=kept))
    return found


def interval(lines: Sequence[Line]) -> str:
    mine = [line for line in lines if line["job"] == NOTHING]
    kept = sum(bool(line["kept"]) for line in mine)
    if not mine:
        return "no search among what does nothing"
    low, high = share_interval(kept, len(mine))
    first = sum(any(tried["verdict"] == "faster" for tried in line["tried"]) for line in mine)
    return (
        f"{kept} of {len(mine)} searches kept what does nothing: {kept / len(mine):.1%} ({low:.1%} to {high:.1%}, the "
        f"exact 95 % interval); in {first} it had looked faster before it was confirmed"
    )


def written(lines: Sequence[Line], found: Sequence[Target], searches: int, folder: Path) -> Path:
    machine = read_machine()
    surroundings = environment(machine, PACKAGES)
    claim = "Whole searches among a choice that does nothing, and one that makes steps slower by 5, 10 and 30 %"
    command = f"python -m bench.tuner --aa {searches}"
    seconds = sorted(line["seconds"] for line in lines)
    facts = [
        f"Jobs: `bench/tuner_jobs.py`; the choice is {CHOICE}",
        f"A search took {seconds[len(seconds) // 2]:.1f} s ({seconds[0]:.1f} to {seconds[-1]:.1f})",
    ]
    page = [
        *head(claim, machine, surroundings, facts, command),
        *target_table(found),
        "",
        f"{interval(lines)}.",
        "",
    ]
    result = {
        "claim": claim,
        "command": command,
        "targets": [asdict(target) | {"outcome": target.outcome} for target in found],
    }
    return write_folder("tuner-on-nothing", folder, machine, surroundings, result, lines, "\n".join(page))
