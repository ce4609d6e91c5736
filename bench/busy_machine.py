"""What a search proves while other programs use the processor.

    python -m bench.busy_machine            # half an hour; nothing else may run; writes a record
    python -m bench.busy_machine --quick    # two minutes; shows that it works, and judges nothing

Each of three jobs is tuned by `hasten tune` on a quiet machine, then beside one and beside two programs that never
stop, and then on the quiet machine again. A plan that is written beside other programs is measured on the quiet
machine: whole runs with it and without it, in turns. Two things are judged: no plan that was written beside other
programs is slower when quiet; and the search on the quiet machine afterwards keeps the techniques that it kept before.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.options import parser_of
from bench.record import PACKAGES, ROOT, Target, environment, head, target_table, write_folder

from hasten.facts.machine import read_machine
from hasten.facts.plan_file import read_plan

JOBS = {
    name: f"{ROOT}/bench/{file}"
    for name, file in {
        "rows": "whole_jobs.py:rows",
        "digits": "whole_jobs.py:digits",
        "convolutions": "busy_jobs.py:convolutions",
    }.items()
}
SEARCHES, SECONDS = 20, 45  # beside other programs; that each search is given
RUNS, NOISE = 5, 0.02  # of a plan that was written beside other programs, and as many without it
TRIES = 3  # to search on a quiet machine
NOT_MEASURABLE = 75
MOST_SLOWER = MOST_SILENT = MOST_DIFFERENT = 0  # fixed before the first run


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """One `hasten tune`. programs: that ran beside it; kept: techniques of the plan that it wrote, None where it wrote
    none; said: how busy it called the machine; slower: whether its plan was slower when quiet, None where not asked."""

    job: str
    programs: int
    code: int
    seconds: float
    kept: tuple[str, ...] | None
    said: str
    slower: bool | None = None


def main() -> None:
    options = parser_of("busy_machine", __doc__).parse_args()
    seconds, searches, names = (20, 2, ["convolutions"]) if options.quick else (SECONDS, SEARCHES, [*JOBS])
    found = [quietly_searched(name, seconds) for name in names]
    for number in range(searches):
        found.append(searched(names[number % len(names)], 1 + number // len(names) % 2, seconds))
    found += [quietly_searched(name, seconds) for name in names]
    if options.quick:
        print("--quick judges nothing: no record was written")
        return
    print(f"written: {written(found, seconds, options.records)}")


def quietly_searched(name: str, seconds: int) -> Searched:
    said = ""
    for _ in range(TRIES):
        found = searched(name, 0, seconds)
        if not found.said:
            return found
        said = found.said
    raise SystemExit(f"{name}: the machine is not quiet: {said}; nothing else may run beside this benchmark")


def searched(name: str, programs: int, seconds: int) -> Searched:
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.toml"
        command = [sys.executable, "-m", "hasten", "tune", JOBS[name], "-o", str(plan), "--seconds", str(seconds)]
        began = time.monotonic()
        with other_programs(programs):
            ended = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False)
        took = time.monotonic() - began
        if ended.returncode not in (0, NOT_MEASURABLE):
            raise SystemExit(f"{name}: exit code {ended.returncode}\n{ended.stderr}")
        kept = tuple(each.choice.technique for each in read_plan(plan).choices) if plan.exists() else None
        slower = is_slower(name, plan) if programs and kept else None
    said = re.findall(r"other programs t\w+ \d+ % of the processor", ended.stderr + ended.stdout)
    told = said[-1] if said else ""
    print(f"{name}, {programs} other programs: exit code {ended.returncode}, kept {kept}, {told}", flush=True)
    return Searched(
        job=name, programs=programs, code=ended.returncode, seconds=took, kept=kept, said=told, slower=slower
    )


def is_slower(name: str, plan: Path) -> bool:
    """Whether whole runs with the plan took longer on the quiet machine, by the median of pairs and more than noise."""
    without, planned = list[float](), list[float]()
    for number in range(RUNS):
        arms = [(without, []), (planned, ["--plan", str(plan)])]
        for taken, more in arms if number % 2 == 0 else arms[::-1]:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-m", "hasten", "train", JOBS[name], "--run-dir", folder, *more]
                began = time.monotonic()
                subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, check=True)
                taken.append(time.monotonic() - began)
    print(f"{name}: without the plan {without}, with it {planned}", flush=True)
    return median(after / before for before, after in zip(without, planned, strict=True)) > 1 + NOISE


@contextmanager
def other_programs(count: int) -> Iterator[None]:
    programs = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}


def written(found: Sequence[Searched], seconds: int, records: Path) -> Path:
    machine = read_machine()
    surroundings = environment(machine, PACKAGES)
    busy = [each for each in found if each.programs]
    slower = sum(each.slower is True for each in busy)
    silent = sum(not each.said for each in busy)
    quiet = [[each.kept for each in found if each.job == name and not each.programs] for name in JOBS]
    different = sum(before != after for before, after in quiet)
    targets = [
        _count(f"plans that are slower when quiet, of {len(busy)} searches beside other programs", MOST_SLOWER, slower),
        _count("of these searches, those that did not say how busy the machine was", MOST_SILENT, silent),
        _count("jobs of three whose quiet search kept other techniques afterwards", MOST_DIFFERENT, different),
    ]
    claim = "What hasten tune proves while other programs use the processor"
    facts = [f"hasten tune --seconds {seconds}; the other programs are Python loops that never stop"]
    page = [
        *head(claim, machine, surroundings, facts, "python -m bench.busy_machine"),
        *target_table(targets),
        "",
        "| job | other programs | exit code | seconds | kept | said |",
        "|---|---|---|---|---|---|",
        *(
            f"| {each.job} | {each.programs} | {each.code} | {each.seconds:.0f} | {_kept(each)} | {each.said} |"
            for each in found
        ),
        "",
        "Exit code 75: not measurable now, no plan was written. Kept: techniques of the plan that was written.",
    ]
    result = {"claim": claim, "targets": [asdict(target) | {"outcome": target.outcome} for target in targets]}
    lines = [asdict(each) for each in found]
    return write_folder("busy-machine", records, machine, surroundings, result, lines, "\n".join(page) + "\n")


def _count(name: str, bound: int, value: int) -> Target:
    return Target(name=name, bound=bound, at_most=True, low=value, value=value, high=value)


def _kept(found: Searched) -> str:
    return "no plan" if found.kept is None else ", ".join(found.kept) or "nothing"


if __name__ == "__main__":
    main()
