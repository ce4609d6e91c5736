"""What a search proves while other programs use the processor.

    python -m bench.busy_machine            # three quarters of an hour; nothing else may run; writes a record
    python -m bench.busy_machine --quick    # two minutes; shows that it works, and judges nothing

Each of three jobs is tuned by `hasten tune` on a quiet machine, then beside one and beside two programs that never
stop, and then on the quiet machine again. A plan that is written beside other programs is measured on the quiet
machine: whole runs with it and without it, in turns. Two things are judged: no plan that was written beside other
programs is slower when quiet; and the plan that is found on the quiet machine afterwards is as fast as the one that
was found before, by whole runs with the one and with the other in turns. Each job is slow for a known reason, so that
there is a plan to find.
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
from hasten.facts.plan import Speedup
from hasten.facts.plan_file import read_plan
from hasten.measure.paired_timing import early_speedup

JOBS = ("layers", "photos", "convolutions")  # of busy_jobs.py
SEARCHES, SECONDS = 20, 60  # beside other programs; that each search is given
RUNS, NOISE = 5, 0.02  # of a plan that was written beside other programs, and as many without it
PAIRS, MOST_APART = 8, 0.05  # of whole runs by the two plans of a quiet machine, where they differ
TRIES = 3  # to search on a quiet machine
NOT_MEASURABLE = 75
MOST_SLOWER = MOST_SILENT = MOST_DIFFERENT = 0  # what they count was last changed before the second record


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
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        found = [quietly_searched(name, before / name, seconds) for name in names]
        for number in range(searches):
            found.append(searched(names[number % len(names)], 1 + number // len(names) % 2, seconds))
        found += [quietly_searched(name, after / name, seconds) for name in names]
        afterwards = {name: compared(name, before / name, after / name) for name in names}
    if options.quick:
        print("--quick judges nothing: no record was written")
        return
    print(f"written: {written(found, afterwards, seconds, options.records)}")


def quietly_searched(name: str, plan: Path, seconds: int) -> Searched:
    said = ""
    for _ in range(TRIES):
        found = searched(name, 0, seconds, plan)
        if not found.said:
            return found
        said = found.said
    raise SystemExit(f"{name}: the machine is not quiet: {said}; nothing else may run beside this benchmark")


def searched(name: str, programs: int, seconds: int, plan: Path | None = None) -> Searched:
    """plan: where to write it; None for a folder that goes with the search."""
    with tempfile.TemporaryDirectory() as folder:
        plan = plan or Path(folder) / "plan.toml"
        plan.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "hasten", "tune", _job(name), "-o", str(plan), "--seconds", str(seconds)]
        began = time.monotonic()
        with other_programs(programs):
            ended = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False)
        took = time.monotonic() - began
        if ended.returncode not in (0, NOT_MEASURABLE):
            raise SystemExit(f"{name}: exit code {ended.returncode}\n{ended.stderr}")
        kept = tuple(each.choice.technique for each in read_plan(plan).choices) if plan.exists() else None
        slower = median(seconds_by(name, None, plan, RUNS)) > 1 + NOISE if programs and kept else None
    said = re.findall(r"other programs t\w+ \d+ % of the processor", ended.stderr + ended.stdout)
    told = said[-1] if said else ""
    print(f"{name}, {programs} other programs: exit code {ended.returncode}, kept {kept}, {told}", flush=True)
    return Searched(
        job=name, programs=programs, code=ended.returncode, seconds=took, kept=kept, said=told, slower=slower
    )


def compared(name: str, before: Path, after: Path) -> Speedup:
    """How many times as fast whole runs are by the plan that was found afterwards; 1 where it is the same."""
    found = [[each.choice for each in read_plan(plan).choices] for plan in (before, after)]
    if found[0] == found[1]:
        return Speedup(ratio=1.0, low=1.0, high=1.0, pairs=0)
    return early_speedup([1 / ratio for ratio in seconds_by(name, before, after, PAIRS)])


def seconds_by(name: str, first: Path | None, second: Path, pairs: int) -> list[float]:
    """Of whole runs by the second plan for one second by the first, None being no plan: one for each pair."""
    seconds = list[float](), list[float]()
    for number in range(pairs):
        pair = [(seconds[0], first), (seconds[1], second)]
        for taken, plan in pair if number % 2 == 0 else pair[::-1]:
            with tempfile.TemporaryDirectory() as folder:
                more = ["--plan", str(plan)] if plan is not None and plan.exists() else []
                command = [sys.executable, "-m", "hasten", "train", _job(name), "--run-dir", folder, *more]
                began = time.monotonic()
                subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, check=True)
                taken.append(time.monotonic() - began)
    print(f"{name}: by the first plan {seconds[0]}, by the second {seconds[1]}", flush=True)
    return [second / first for first, second in zip(*seconds, strict=True)]


def _job(name: str) -> str:
    return f"{ROOT}/bench/busy_jobs.py:{name}"


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


def written(found: Sequence[Searched], afterwards: dict[str, Speedup], seconds: int, records: Path) -> Path:
    machine = read_machine()
    surroundings = environment(machine, PACKAGES)
    busy = [each for each in found if each.programs]
    slower = sum(each.slower is True for each in busy)
    silent = sum(not each.said for each in busy)
    written_plans = sum(each.kept is not None for each in busy)
    different = sum(each.low > 1 + MOST_APART or each.high < 1 - MOST_APART for each in afterwards.values())
    targets = [
        _count(f"plans that are slower when quiet, of {len(busy)} searches beside other programs", MOST_SLOWER, slower),
        _count("of these searches, those that did not say how busy the machine was", MOST_SILENT, silent),
        _count("jobs of three whose quiet search afterwards found a plan of another speed", MOST_DIFFERENT, different),
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
        "",
        f"{written_plans} of the {len(busy)} searches beside other programs wrote a plan.",
        "",
        f"A job counts as one of another speed only where the whole 95 % interval of {PAIRS} pairs of whole runs lies "
        f"below {1 - MOST_APART:g} or above {1 + MOST_APART:g}. An interval that contains one of these bounds is "
        "inconclusive. Where both searches found the same plan there are no runs.",
        "",
        "| job | times as fast by the plan found afterwards |",
        "|---|---|",
        *(f"| {name} | {each.ratio:.4g} ({each.low:.4g} to {each.high:.4g}) |" for name, each in afterwards.items()),
    ]
    result = {
        "claim": claim,
        "afterwards": {name: asdict(each) for name, each in afterwards.items()},
        "targets": [asdict(target) | {"outcome": target.outcome} for target in targets],
    }
    lines = [asdict(each) for each in found]
    return write_folder("busy-machine", records, machine, surroundings, result, lines, "\n".join(page) + "\n")


def _count(name: str, bound: int, value: int) -> Target:
    return Target(name=name, bound=bound, at_most=True, low=value, value=value, high=value)


def _kept(found: Searched) -> str:
    return "no plan" if found.kept is None else ", ".join(found.kept) or "nothing"


if __name__ == "__main__":
    main()
