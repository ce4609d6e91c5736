"""How long a training takes from SIGTERM to its end, beside the step that it finishes and the checkpoint that it saves.

    python -m bench.sigterm            # a quarter of an hour; nothing else may run; writes a record
    python -m bench.sigterm --quick    # a minute; shows that it works, and judges nothing

`hasten train` runs in a process of its own and is told to end at a random instant, a hundred times. It may take its
longest step so far, the seconds that it says its last save took, and one second. Each time, the step that was logged
last has to be the one in the newest checkpoint, and that has to be whole.
"""

from __future__ import annotations

import json
import os
import random
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bench.options import parser_of
from bench.record import PACKAGES, ROOT, Target, environment, head, target_table, write_folder

from hasten.checkpoint.saved_checkpoint import checkpoints_in
from hasten.errors import TERMINATED
from hasten.facts.machine import read_machine

JOB = "bench/checkpoint_stall.py:job"
TIMES = 100
MORE_SECONDS = 1.0  # fixed before the first run
LATEST_SECONDS = 3.0  # after the first logged step
SAVED = re.compile(r"^saved step ([\d,]+) .* in ([\d.]+) (µs|ms|s),", re.MULTILINE)
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """One SIGTERM. seconds: until the process was gone. step_seconds: of the longest step. save_seconds: of the last
    save, until it was read back. right: whether what was logged last is saved, whole, and the exit code 143."""

    after_seconds: float  # from the first logged step to the signal
    step: int
    seconds: float
    step_seconds: float
    save_seconds: float
    right: bool

    @property
    def beyond_seconds(self) -> float:
        """Beside the step and the save."""
        return self.seconds - self.step_seconds - self.save_seconds


def main() -> None:
    parser = parser_of("sigterm", __doc__)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to write to; the system's temporary one")
    options = parser.parse_args()
    chance, endings = random.Random(0), list[Ending]()
    for _ in range(4 if options.quick else TIMES):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            endings.append(ended(Path(folder) / "run", chance.uniform(0.0, LATEST_SECONDS)))
        print(json.dumps(asdict(endings[-1])), flush=True)
    targets = judged(endings)
    for target in targets:
        print(f"{target.name}: {target.value:.3g} ({target.low:.3g} to {target.high:.3g}), {target.outcome}")
    if options.quick:
        print("--quick judges nothing: no record was written", flush=True)
        return
    _write(endings, targets, options.records)


def ended(run: Path, after_seconds: float) -> Ending:
    """Train into the folder, and send SIGTERM so many seconds after the first step was logged."""
    with subprocess.Popen(
        [sys.executable, "-m", "hasten", "train", JOB, "--run-dir", str(run)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        while not any(event["event"] == "trained" for event in _logged(run)):
            if process.poll() is not None:
                raise RuntimeError(f"the training ended by itself with {process.returncode}")
            time.sleep(0.05)
        ends = os.pidfd_open(process.pid)
        select.select([ends], [], [], after_seconds)
        begin = time.perf_counter()
        process.terminate()
        told, _ = process.communicate()
        seconds = time.perf_counter() - begin
        os.close(ends)
    events = _logged(run)
    steps = [event for event in events if event["event"] == "trained"]
    newest = checkpoints_in(run / "checkpoints")[0]
    step, number, unit = SAVED.findall(told)[-1]
    return Ending(
        after_seconds=after_seconds,
        step=steps[-1]["step"],
        seconds=seconds,
        step_seconds=max((b["seconds"] - a["seconds"] for a, b in pairwise(steps)), default=0.0),
        save_seconds=float(number) * UNITS[unit],
        right=process.returncode == TERMINATED
        and newest.verify().step == steps[-1]["step"] == int(step.replace(",", "")),
    )


def judged(endings: list[Ending]) -> list[Target]:
    wrong = float(sum(not each.right for each in endings))
    late = float(sum(each.beyond_seconds > MORE_SECONDS for each in endings))
    beyond = sorted(each.beyond_seconds for each in endings)
    times = len(endings)
    return [
        _counted(f"of {times} endings: the step logged last is not the one saved, whole, with exit 143", wrong),
        _counted(f"of {times} endings: later than one step, the save and {MORE_SECONDS:g} s", late),
        Target(
            name="seconds beside the step and the save: median, least and most",
            bound=MORE_SECONDS,
            at_most=True,
            low=beyond[0],
            value=median(beyond),
            high=beyond[-1],
        ),
    ]


def _counted(name: str, number: float) -> Target:
    return Target(name=name, bound=0.0, at_most=True, low=number, value=number, high=number)


def _logged(run: Path) -> list[Mapping[str, Any]]:
    """The whole lines of its log so far."""
    try:
        lines = (run / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def _write(endings: list[Ending], targets: list[Target], records: Path) -> None:
    machine = read_machine()
    surroundings = environment(machine, PACKAGES)
    middle = {
        name: median(getattr(each, name) for each in endings) for name in ("seconds", "step_seconds", "save_seconds")
    }
    facts = [
        f"Job: `{JOB}`, a training state of about 256 MiB",
        f"Medians: {middle['seconds']:.2f} s from the signal to the end, of which the longest step of the run lasts "
        f"{middle['step_seconds']:.2f} s and the save, read back, {middle['save_seconds']:.2f} s",
    ]
    claim = f"From SIGTERM to a verified end, {len(endings)} times at random instants"
    page = "\n".join(
        [*head(claim, machine, surroundings, facts, "python -m bench.sigterm"), *target_table(targets), ""]
    )
    found = {"median": middle, "targets": [asdict(target) | {"outcome": target.outcome} for target in targets]}
    home = write_folder("sigterm", records, machine, surroundings, found, map(asdict, endings), page)
    print(f"written: {home}", flush=True)


if __name__ == "__main__":
    main()
