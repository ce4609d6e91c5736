"""Exact evaluation: every sample once, no padding, means weighted by the number of their items.

It runs without gradients, with its own batch size, which halves when memory runs out. The model's modes and the global
random states are restored afterwards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hasten.data.loading.data_errors import is_out_of_memory
from hasten.data.order.randomness import derived, reseed, seed_step, undisturbed
from hasten.errors import RAISED, DataFailed, JobError, OutOfMemory
from hasten.facts.job import Loss
from hasten.parallel.collectives import gather_over_ranks, sum_over_ranks
from hasten.parallel.strategy import Single, Strategy
from hasten.techniques.setup import Setup
from hasten.training.evaluation.job_metrics import JobMetrics
from hasten.training.failures.user_code import IN_AN_EVALUATION
from hasten.training.step_parts.losses import (
    LossFunction,
    at_least_float32,
    calling,
    check_count,
    checked,
    count_of,
    total_of,
)

Batches = Callable[[int], Generator[tuple[Any, int]]]
"""(batch size) -> the evaluation's batches on the device, each with its number of samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    results: Mapping[str, float]  # "loss" and the job's metrics
    seconds: float
    batch_size: int  # the one that fitted


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of an evaluation, when only its seconds are wanted.

    seconds: after which it may end. samples: of the whole evaluation; None where unknown. ahead: batches that the
    loader may have ready before they are asked for, whose time says nothing about how fast it reads.
    """

    seconds: float
    samples: int | None
    ahead: int = 0


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode inside the block; each one's own mode, frozen parts included, after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class Evaluator:
    """Call it for an Evaluation. The batch size that fitted once is used from then on."""

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        metrics: Mapping[str, Any],
        batches: Batches,
        batch_size: int,
        *,
        device: torch.device,
        seed: int = 0,
        autocast: torch.dtype | None = None,
        strategy: Strategy | None = None,
        field: str = "loss",
        data: str = "valid",
    ) -> None:
        """seed: every evaluation draws the same random numbers, so that two of them differ by the weights alone.
        field, data: of the job, that hold the loss and the data."""
        self._model, self._batches, self._device = model, batches, device
        self._strategy = strategy or Single(device)
        self._ranks = self._strategy.grid.data
        self._metrics = JobMetrics(metrics, device, self._ranks)
        self._call_loss = partial(calling(device, autocast), loss, model, field=field)
        self._field, self._data = field, data
        self.batch_size, self._are_ranks_waiting = batch_size, False
        self._seed = seed

    def __call__(self) -> Evaluation:
        """Raises OutOfMemory when one sample does not fit, DataFailed when nothing was counted."""
        start = time.monotonic()
        results = self._fitting(self._batches)
        return Evaluation(results=results, seconds=time.monotonic() - start, batch_size=self.batch_size)

    def timed(self, part: Part, clock: Callable[[], float], settle: Callable[[], None]) -> float | None:
        """The seconds that an evaluation of all samples takes; its results are dropped. Measured whole where it is
        short, else extrapolated from a part of its batches. None where it is long and the number of samples is unknown.

        clock: now, in seconds. settle: waits for the device. Raises what a call does.
        """
        seen = list[tuple[int | None, float]]()

        def batches(batch_size: int) -> Generator[tuple[Any, int]]:
            seen.clear()
            done = done_before = 0
            begin = 0.0
            with closing(self._batches(batch_size)) as whole:
                for number, (batch, samples) in enumerate(whole):
                    yield batch, samples
                    done += samples
                    if number == part.ahead:
                        settle()
                        begin, done_before = clock(), done
                    elif number > part.ahead and clock() - begin >= part.seconds:
                        settle()
                        left = None if part.samples is None else max(part.samples - done, 0)
                        seen.append((left, (clock() - begin) / max(done - done_before, 1)))
                        return

        start = clock()
        self._fitting(batches)
        settle()
        seconds = clock() - start
        for left, seconds_per_sample in seen:
            if left is None:
                return None
            seconds += left * seconds_per_sample
        return seconds

    def _fitting(self, batches: Batches) -> dict[str, float]:
        """With as many samples in a batch as fit."""
        while True:
            try:
                return self._evaluate(batches)
            except Exception as error:
                # Other ranks may be in the same forward pass, or wait for this rank's results.
                if not is_out_of_memory(error) or not self._strategy.sharding.is_whole or self._are_ranks_waiting:
                    raise
                if self.batch_size == 1:
                    raise OutOfMemory(
                        "one sample does not fit into memory",
                        where="evaluation",
                        fix="evaluate on smaller samples, or on a device with more memory",
                    ) from error
            # Outside the except block: the traceback would keep the failed batch's tensors alive.
            self.batch_size = (self.batch_size + 1) // 2
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _evaluate(self, batches: Batches) -> dict[str, float]:
        with undisturbed(self._device), evaluation_mode(self._model), torch.no_grad():
            reseed(derived(self._seed, self._ranks.rank, 0))
            seed_step(self._seed, self._ranks.rank, 0, self._device)  # step 0: no training step draws the same
            # total, count, auxiliary total, samples: one all-reduce sums them over the ranks
            sums = torch.zeros(4, dtype=torch.float64, device=self._device)
            self._metrics.reset()
            self._parts = dict[str, Tensor]()  # sums over this rank's items
            self._are_ranks_waiting = False
            self._add_up(batches, sums)
            self._are_ranks_waiting = self._ranks.many
            found = self._strategy.agree(lambda: self._results(sums))
        check_count(found["count"], field=self._field)
        if not found["count"]:
            raise DataFailed(
                f"the loss counted no item in {found['samples']:.0f} samples",
                where="evaluation",
                fix="give valid data whose loss has a count above 0",
            )
        return found["results"]

    def _add_up(self, batches: Batches, sums: Tensor) -> None:
        seen = 0
        for batch, samples in batches(self.batch_size):
            try:
                returned = self._strategy.forward(self._call, batch)
            except RAISED as error:
                share = "this rank's share of " if self._ranks.many else ""
                error.add_note(f"{IN_AN_EVALUATION}: samples {seen} to {seen + samples - 1} of {share}Job.{self._data}")
                raise
            if not samples or returned is None:  # a batch that only keeps ranks together, or no loss on this rank
                continue
            seen += samples
            sums[0] += total_of(returned, samples)
            sums[1] += count_of(returned, samples)
            sums[3] += samples
            if isinstance(returned, Loss) and returned.auxiliary is not None:
                sums[2] += at_least_float32(returned.auxiliary) * samples
            for name, value in (returned.parts or {}).items() if isinstance(returned, Loss) else ():
                self._parts[name] = self._parts.get(name, 0.0) + value.double()
            self._metrics.update(returned)

    def _call(self, batch: Any) -> Loss | Tensor:
        return checked(self._call_loss(batch), self._field)

    def _results(self, sums: Tensor) -> dict[str, Any]:
        total, count, auxiliary, samples = sum_over_ranks(sums, self._ranks).tolist()
        if not count > 0:
            return {"count": count, "samples": samples}
        loss = total / count + auxiliary / max(samples, 1)
        parts, metrics = self._means_of_parts(count), self._metrics.compute()
        if twice := parts.keys() & metrics.keys():
            what = f"returned the part {min(twice)!r}, which is the name of a metric too"
            raise JobError(self._field, what, "rename one of them")
        return {"count": count, "samples": samples, "results": {"loss": loss, **parts, **metrics}}

    def _means_of_parts(self, count: float) -> dict[str, float]:
        own = {name: value.item() for name, value in self._parts.items()}
        seen = gather_over_ranks([own], self._ranks, self._device)  # a rank without a sample has no parts
        names = dict.fromkeys(name for each in seen for name in each)
        return {name: math.fsum(each.get(name, 0.0) for each in seen) / count for name in names}

    def state_dict(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.batch_size = state["batch_size"]


def evaluator_of(
    setup: Setup,
    model: nn.Module,
    loss: LossFunction,
    strategy: Strategy,
    batches: Batches,
    batch_size: int,
    data: str = "valid",
) -> Evaluator:
    """Of a job whose plan is applied. model, loss: as the strategy has prepared them. data: the field of the job."""
    job = setup.job
    return Evaluator(
        model,
        job.eval_loss or loss,
        job.metrics,
        batches,
        batch_size,
        device=setup.device,
        seed=job.seed,
        autocast=setup.step.autocast,
        strategy=strategy,
        field="loss" if job.eval_loss is None else "eval_loss",
        data=data,
    )
