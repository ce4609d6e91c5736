"""The digits job trained twice, plainly and by a plan, and what that made of it: `make demo`.

Each training is watched once, in turn, so the table compares epochs of two single runs: the median epoch, and the range
of all. A speed-up with an interval needs interleaved windows; `python -m bench.before_after` takes the half hour.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hasten
from hasten.facts.events import Evaluated, Event, Started, Trained
from hasten.report.terminal import Progress, show
from hasten.report.text import duration, table

EXAMPLES = Path(__file__).resolve().parent
PLAN = EXAMPLES / "plans" / "digits.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """One training: seconds of each epoch without its evaluation, the last accuracy, and the machine."""

    epoch_seconds: Sequence[float]
    total_seconds: float
    accuracy: float
    machine: str

    @property
    def median(self) -> float:
        return statistics.median(self.epoch_seconds)


class Epochs:
    """A receiver that keeps when epochs ended, on the run's own clock."""

    def __init__(self) -> None:
        self.machine = ""
        self.seconds: list[float] = []
        self._latest = self._begin = 0.0

    def log(self, event: Event) -> None:
        if isinstance(event, Started):
            self.machine = event.machine
        elif isinstance(event, Trained):
            self._latest = event.seconds
        elif isinstance(event, Evaluated):
            self.seconds.append(self._latest - self._begin)
            self._begin = self._latest + event.seconds

    def close(self) -> None:
        pass


def watch(job: hasten.Job, plan: Path | None, run_dir: Path) -> Watched:
    epochs = Epochs()
    result = hasten.train(job, plan, run_dir=run_dir, receivers=[Progress(), epochs], name="examples/digits.py:job")
    return Watched(
        epoch_seconds=epochs.seconds,
        total_seconds=result.seconds,
        accuracy=result.results["accuracy"],
        machine=epochs.machine,
    )


def compared(name: str, run: Watched, baseline: Watched) -> list[str]:
    """A row of the table. The range of the ratio is that of the slowest over the fastest epoch, either way round."""
    fastest, slowest = min(run.epoch_seconds), max(run.epoch_seconds)
    low, high = min(baseline.epoch_seconds) / slowest, max(baseline.epoch_seconds) / fastest
    ratio = "baseline" if run is baseline else f"{baseline.median / run.median:.2f}× ({low:.2f}–{high:.2f})"
    epoch = f"{duration(run.median)} ({duration(fastest)}–{duration(slowest)})"
    return [name, duration(run.total_seconds), epoch, ratio, f"{run.accuracy:.4f}"]


def main() -> None:
    sys.path.insert(0, str(EXAMPLES))
    from digits import job

    folder = Path(tempfile.mkdtemp(prefix="hasten-demo-"))
    print("\n1 of 2: the job as it is, in float32\n")
    plain = watch(job(), None, folder / "plain")
    print("\n2 of 2: the same job by examples/plans/digits.toml\n")
    planned = watch(job(), PLAN, folder / "planned")

    header = ["digits", "whole run", "an epoch (range)", "faster (range)", "accuracy"]
    rows = [compared("plain float32", plain, plain), compared("with the plan", planned, plain)]
    print("\n" + "\n".join(f"  {line}" for line in table(header, rows)) + "\n")
    show(
        "",
        [
            ("machine", plain.machine),
            ("spread", f"of the {len(plain.epoch_seconds)} epochs of one run each, one run after the other"),
            ("kept", str(folder)),
            ("next", "hasten explain precision"),
        ],
    )


if __name__ == "__main__":
    main()
