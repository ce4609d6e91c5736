"""A job under a plan, trained on request: what an arm's process holds.

The steps are those of the training itself, on its own loader, from the first one on; only early stopping is off,
and no best weights are kept. When the planned run has no whole window left, it is restarted and warmed up again,
outside of what is timed.

The wait for an epoch's first batch is called a turn. Turns are timed one by one and are in no window: a loader that
restarts its workers takes long over them, and a window would contain one or not, by chance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch

from hasten.errors import NonFinite
from hasten.facts.job import Job
from hasten.facts.plan import Plan
from hasten.training.evaluate import Part
from hasten.training.probes.peak_memory import peak_memory
from hasten.training.run import Run
from hasten.training.step_parts.losses import WindowLoss, mean_loss

WARM_UP_STEPS = 2  # of a restarted run: the first makes the optimizer's state
EVALUATION_SECONDS = 0.2  # of an evaluation, from which its whole length is extrapolated
USUAL_PREFETCH = 2  # torch's own: batches that a worker keeps ready


class Trial:
    """Use it in the process of an arm; close() it."""

    def __init__(self, job: Job, plan: Plan, name: str) -> None:
        self.job, self.stop, self.plan, self.name = replace(job, stop=None, keep=None), job.stop, plan, name
        self.keep = job.keep
        self._begin()

    def _begin(self) -> None:
        self.run = Run(self.job, self.plan, name=self.name)
        self._batches: Generator[Any] = self.run.batches()
        self._turned = False
        self._peak_memory = peak_memory(self.run.device)

    def close(self) -> None:
        self.run.close()

    def restart(self) -> None:
        self.close()
        del self.run, self._batches  # before the new one takes its memory
        self._begin()

    def window(self, steps: int) -> dict[str, Any]:
        """Take so many optimizer steps, fewer where the planned run is shorter.

        steps: taken; seconds: of all, without the turns; turns: [epoch, seconds] of every turn among them;
        interruptions: none, for hasten's own loop evaluates and saves elsewhere; losses: the mean of every step;
        peak_bytes: of memory, up to now. Raises NonFinite for a loss that is not finite.
        """
        self.make_room(steps)
        return self._timed(steps)

    def make_room(self, steps: int) -> None:
        """Restart the run now if the next window of so many steps would have to."""
        if self._turned or (self.run.steps and not self._has_room_for(steps)):
            self.restart()
            if self._has_room_for(steps + WARM_UP_STEPS):
                self._timed(WARM_UP_STEPS)

    def turn(self) -> dict[str, Any]:
        """Wait for the first batch of the next epoch, without training on it: the seconds. For a run that has trained.

        The next window restarts the run."""
        self._batches.close()
        self.run.skip_to_next_epoch()
        batches = self.run.epoch_batches()
        begin = time.perf_counter()
        next(batches, None)
        seconds = time.perf_counter() - begin
        batches.close()
        self._turned = True
        return {"seconds": seconds}

    def two_epochs(self, steps: int) -> dict[str, Any]:
        """The losses of the first steps of the first epoch and then of the second, without those between; where an
        epoch has no more, or its length is unknown, of the first twice as many steps. For a run that has taken none;
        afterwards the trial cannot be used for anything else.

        Raises NonFinite for a loss that is not finite.
        """
        of_an_epoch = self.run.loader.steps_per_epoch
        if of_an_epoch is None or of_an_epoch <= steps:
            return {"losses": self._timed(2 * steps)["losses"]}
        first = self._timed(steps)["losses"]
        self._batches.close()
        self.run.skip_to_next_epoch()
        self._batches = self.run.batches()
        return {"losses": first + self._timed(steps)["losses"]}

    def evaluate(self, seconds: float) -> dict[str, Any]:
        """seconds: that an evaluation of all samples takes, extrapolated from as many of its batches as take so long.
        Schedule and stopping do not see it."""
        run, evaluator = self.run, self.run.evaluator
        if evaluator is None:
            return {"seconds": 0.0}
        valid = run.built.valid
        assert valid is not None
        options = valid.options or run.setup.loader
        part = Part(
            seconds=math.inf if valid.count is None else seconds,
            samples=valid.count or 0,
            ahead=options.workers * (options.prefetch_factor or USUAL_PREFETCH),
        )
        self.settle()
        with run.built.result.in_model(), run.built.declared.preserved():
            return {"seconds": evaluator.timed(part, time.perf_counter, self.settle)}

    def device_memory(self) -> dict[str, int]:
        """Bytes that this process has held of its device's own memory, and those that are free; 0 where the device
        has none of its own."""
        if self.run.device.type != "cuda":
            return {"held": 0, "free": 0}
        held = torch.cuda.max_memory_reserved(self.run.device)
        return {"held": held, "free": torch.cuda.mem_get_info(self.run.device)[0]}

    def _timed(self, steps: int) -> dict[str, Any]:
        run, clock = self.run, time.perf_counter
        first, epoch, turns = run.steps, run.epoch if run.steps else -1, list[tuple[int, float]]()
        self.settle()
        begin = asked = clock()
        for batch in self._batches:
            if run.epoch != epoch:
                epoch = run.epoch
                turns.append((epoch, clock() - asked))
            run.step(batch)
            if run.steps - first == steps:
                break
            asked = clock()
        self.settle()
        seconds = clock() - begin - sum(waited for _, waited in turns)
        losses = self._finite_losses(first)
        return {
            "steps": run.steps - first,
            "seconds": seconds,
            "turns": turns,
            "interruptions": [],
            "losses": [window.mean for window in losses],
            "peak_bytes": self._peak_memory(),
        }

    def _has_room_for(self, steps: int) -> bool:
        total = self.run.total_steps
        return total is None or total - self.run.steps >= steps

    def settle(self) -> None:
        """Wait for the device: otherwise queued work would be counted in the next window, or in none."""
        if self.run.device.type == "cuda":
            torch.cuda.synchronize(self.run.device)

    def _finite_losses(self, first: int) -> list[WindowLoss]:
        losses = self.run.losses.drain()
        if losses and not math.isfinite(loss := mean_loss(losses)):
            raise NonFinite(f"the loss is {loss} at step {first + 1} or later")
        return losses
