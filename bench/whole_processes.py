"""What `hasten train` costs as a whole process, beyond a plain script of the same training.

    python -m bench.whole_processes            # a quarter of an hour; nothing else may run; writes a record
    python -m bench.whole_processes --quick    # a minute; shows that it works, and judges nothing

Three small trainings (bench/whole_work.py), each as a plain script and as a job that `hasten train` trains into a run
folder. Script and job are started one after the other, and every other pair in the opposite order. Both say how long
their training took. What is left of the whole process is its start and its end: imports, reading the data, building,
the last checkpoint, the weights. The figure is how much longer start and end are under `hasten train`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from bench.options import parser_of
from bench.record import PACKAGES, ROOT, Target, environment, head, target_table, write_folder
from bench.whole_work import WORKS

from hasten.facts.machine import read_machine
from hasten.measure.paired_timing import LEAST_PAIRS, estimate

MOST_SECONDS = 1.0  # fixed before the first run
SCRIPT, JOB = "script", "hasten train"


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """One process. seconds: from its start to its end; trained: of them, as it says itself."""

    work: str
    arm: str
    pair: int
    seconds: float
    trained: float

    @property
    def around(self) -> float:
        """Seconds of its start and its end."""
        return self.seconds - self.trained


def main() -> None:
    parser = parser_of("whole_processes", __doc__)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=[*WORKS], help="these trainings alone")
    options = parser.parse_args()
    found = list[Whole]()
    for name in options.only:
        run(name, 0, [SCRIPT, JOB])  # reads the files of both once, so that the first pair finds them in memory
        for pair in range(2 if options.quick else LEAST_PAIRS):
            found += run(name, pair, [SCRIPT, JOB] if pair % 2 == 0 else [JOB, SCRIPT])
            print("; ".join(f"{each.work} {each.arm} {each.seconds:.2f} s" for each in found[-2:]), flush=True)
    if options.quick:
        for whole in found:
            print(f"{whole.work} {whole.arm}: {whole.seconds:.2f} s, of which trained {whole.trained:.2f} s")
        print("--quick judges nothing: no record was written")
        return
    print(f"written: {written(found, options.only, options.records)}")


def run(name: str, pair: int, order: Sequence[str]) -> list[Whole]:
    """One process of each, in this order."""
    found = list[Whole]()
    for arm in order:
        with tempfile.TemporaryDirectory() as folder:
            command = (
                [sys.executable, "-m", "bench.whole_script", name, f"{folder}/weights.pt"]
                if arm == SCRIPT
                else [
                    sys.executable,
                    "-m",
                    "hasten",
                    "train",
                    f"{ROOT}/bench/whole_jobs.py:{name}",
                    "--run-dir",
                    folder,
                ]
            )
            began = time.perf_counter()
            ended = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=True)
            seconds = time.perf_counter() - began
            trained = _said(ended.stdout) if arm == SCRIPT else _logged(Path(folder))
        found.append(Whole(work=name, arm=arm, pair=pair, seconds=seconds, trained=trained))
    return sorted(found, key=lambda whole: whole.arm, reverse=True)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}


def _said(output: str) -> float:
    return float(output.splitlines()[-1].removeprefix("trained "))


def _logged(run_dir: Path) -> float:
    """Seconds from the first step to the end of the last evaluation: neither the last checkpoint nor the weights."""
    events = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    last = {event["event"]: event for event in events}
    return last["trained"]["seconds"] + last["evaluated"]["seconds"]


def written(found: Sequence[Whole], names: Sequence[str], records: Path) -> Path:
    machine = read_machine()
    surroundings = environment(machine, [*PACKAGES, "scikit-learn", "pillow"])
    targets, rows = list[Target](), list[str]()
    for name in names:
        scripts, jobs = ([each for each in found if each.work == name and each.arm == arm] for arm in (SCRIPT, JOB))
        extra = [job.around - script.around for script, job in zip(scripts, jobs, strict=True)]
        whole = [job.seconds - script.seconds for script, job in zip(scripts, jobs, strict=True)]
        low, value, high = _spread(extra)
        what = f"{name}: seconds of start and end beyond the script's"
        targets.append(Target(name=what, bound=MOST_SECONDS, at_most=True, low=low, value=value, high=high))
        cells = [_told([each.seconds for each in arm]) for arm in (scripts, jobs)]
        cells += [_told([each.around for each in arm]) for arm in (scripts, jobs)]
        rows.append(f"| {' | '.join([name, *cells, _told(extra), _told(whole)])} |")
    claim = "What hasten train costs as a whole process, beyond a plain script of the same training"
    facts = [f"{len(found) // (2 * len(names))} pairs of whole processes of each training, in turns"]
    page = [
        *head(claim, machine, surroundings, facts, "python -m bench.whole_processes"),
        *target_table(targets),
        "",
        "| training | script | hasten train | around it, script | around it, hasten train | beyond | whole, beyond |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        "Seconds: the median of all processes, with a 95 % bootstrap interval over pairs. Start and end are the whole "
        "process without what each says that its training took. The whole can be shorter under hasten train, as rows "
        "in memory are gathered by index there; start and end show what that would hide.",
    ]
    result = {"claim": claim, "targets": [asdict(target) | {"outcome": target.outcome} for target in targets]}
    lines = [asdict(each) for each in found]
    return write_folder("whole-processes", records, machine, surroundings, result, lines, "\n".join(page) + "\n")


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return estimate(lambda resamples: np.median(resamples, axis=-1), np.array(values))


def _told(values: Sequence[float]) -> str:
    low, value, high = _spread(values)
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
