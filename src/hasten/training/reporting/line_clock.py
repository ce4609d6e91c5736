"""The rates of a log line."""

from __future__ import annotations

import time

from hasten.facts.events import Trained
from hasten.training.probes.peak_memory import peak_memory
from hasten.training.run import Run


class LineClock:
    """Rates since the last log line: seconds, samples and the share of time that went into waiting for data."""

    def __init__(self, run: Run, start: float) -> None:
        self._run, self._start = run, start
        self._memory = peak_memory(run.device)
        self.restart()

    def restart(self) -> None:
        self._since, self._samples, self._wait = (
            time.monotonic(),
            self._run.built.batches.samples_seen,
            self._run.built.batches.wait_seconds,
        )

    def next(self, epoch: int) -> Trained:
        """A line whose loss is still to come."""
        run, batches, now = self._run, self._run.built.batches, time.monotonic()
        passed = max(now - self._since, 1e-9)
        momenta = run.schedule.momenta()
        line = Trained(
            step=run.steps,
            epoch=epoch,
            loss=float("nan"),
            learning_rate=run.schedule.rates()[0],
            momentum=momenta[0],
            gradient_norm=run.gradient_norm if run.setup.step.read_every <= run.job.log_every else None,
            seconds=now - self._start,
            samples_per_second=(batches.samples_seen - self._samples) * run.grid.data.size / passed,
            data_wait_share=min((batches.wait_seconds - self._wait) / passed, 1.0),
            memory_bytes=self._memory(),
            skipped_updates=run.built.step.skips.skipped,
        )
        self.restart()
        return line
