"""Exact evaluation: every sample once, nothing padded, means weighted by what they are means of.

Runs under no_grad with its own batch size, which halves when memory runs out. It leaves the model's modes and the
global random states as they were, and a run restores the state that its job declares. So how often one evaluates
changes what is learned only where the model changes in evaluation mode too, or the loss changes undeclared state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hasten.data.loading.data_errors import is_out_of_memory
from hasten.data.order.randomness import undisturbed
from hasten.errors import RAISED, DataFailed, OutOfMemory
from hasten.facts.job import Loss
from hasten.facts.ranks import ALONE, Ranks
from hasten.parallel.replicate.replicated import sum_over_ranks
from hasten.training.evaluation.job_metrics import JobMetrics
from hasten.training.failures.user_code import IN_AN_EVALUATION
from hasten.training.probes.quiet import evaluation_mode
from hasten.training.step_parts.losses import (
    LossFunction,
    at_least_float32,
    calling,
    check_count,
    checked,
    count_of,
    total_of,
)

if TYPE_CHECKING:  # they take seconds to load, and few jobs need them
    from torchmetrics import Metric

    from hasten.parallel.pipeline.pipelined import Pipeline

Batches = Callable[[int], Generator[tuple[Any, int]]]
"""(batch size) -> the evaluation's batches on the device, each with its number of samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    results: Mapping[str, float]  # "loss" and the job's metrics
    seconds: float
    batch_size: int  # the one that fitted


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Of an evaluation, when only its seconds are asked for.

    seconds: after which it may end; samples: in the whole, None where nobody knows; ahead: batches that its reader may
    have ready before they are asked for, which say nothing of how fast it reads.
    """

    seconds: float
    samples: int | None
    ahead: int = 0


class Evaluator:
    """Call it for an Evaluation. The batch size that fitted once is kept."""

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        metrics: Mapping[str, Metric],
        batches: Batches,
        batch_size: int,
        *,
        device: torch.device,
        autocast: torch.dtype | None = None,
        ranks: Ranks = ALONE,
        together: bool = False,
        pipeline: Pipeline | None = None,
    ) -> None:
        """together: whether ranks wait for each other in a forward pass. pipeline: where each holds a stage of it."""
        self._together, self._pipeline = together, pipeline
        computes = loss if pipeline is None else pipeline.in_parts or loss
        self._forward_only = getattr(computes, "forward_only", torch.no_grad)
        self._model, self._loss, self._batches, self._device = model, loss, batches, device
        self._metrics = JobMetrics(metrics, device, ranks)
        self._call_loss, self._ranks = calling(device, autocast), ranks
        self.batch_size, self._meeting = batch_size, False

    def __call__(self) -> Evaluation:
        """Raises OutOfMemory when one sample does not fit, DataFailed when nothing was counted."""
        start = time.monotonic()
        results = self._fitting(self._batches)
        return Evaluation(results=results, seconds=time.monotonic() - start, batch_size=self.batch_size)

    def timed(self, part: Part, clock: Callable[[], float], settle: Callable[[], None]) -> float | None:
        """The seconds that an evaluation of all samples takes, its results thrown away: as long as it is short by
        itself, else by its start, its end and a part of its batches. None where it is long, and nobody knows how many
        samples there are.

        clock: now, in seconds; settle: waits for the device. Raises what a call does.
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
                # The others are in the same forward pass, or wait for this rank's results.
                if not is_out_of_memory(error) or self._together or self._meeting:
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
        with undisturbed(self._device), evaluation_mode(self._model), self._forward_only():
            return self._results(batches)

    def _results(self, batches: Batches) -> dict[str, float]:
        # total, count, auxiliary total, samples: one all-reduce brings the ranks together
        sums = torch.zeros(4, dtype=torch.float64, device=self._device)
        self._metrics.reset()
        self._meeting, seen = False, 0
        for batch, samples in batches(self.batch_size):
            try:
                returned = self._returned(batch)
            except RAISED as error:
                share = "this rank's share of " if self._ranks.many else ""
                error.add_note(f"{IN_AN_EVALUATION}: samples {seen} to {seen + samples - 1} of {share}Job.valid")
                raise
            if not samples or returned is None:  # of a rank that has had its share, or computes no loss
                continue
            seen += samples
            sums[0] += total_of(returned, samples)
            sums[1] += count_of(returned, samples)
            sums[3] += samples
            if isinstance(returned, Loss) and returned.auxiliary is not None:
                sums[2] += at_least_float32(returned.auxiliary) * samples
            self._metrics.update(returned)
        self._meeting = self._ranks.many
        sums = sum_over_ranks(sums, self._ranks)
        total, count, auxiliary, samples = (sums if self._pipeline is None else self._pipeline.from_last(sums)).tolist()
        check_count(count)
        if not count:
            raise DataFailed(
                f"no item was counted in {samples:.0f} samples",
                where="evaluation",
                fix="give valid data whose loss has a count above 0",
            )
        results = {"loss": total / count + auxiliary / max(samples, 1)}
        if self._pipeline is None:
            return results | self._metrics.compute()
        self._pipeline.settle()
        return results | self._pipeline.told_by_last(self._metrics.compute)

    def _returned(self, batch: Any) -> Loss | Tensor | None:
        """What the loss returned; None on a rank of another stage than the last."""
        if self._pipeline is None:
            return checked(self._call_loss(self._loss, self._model, batch))
        found = self._pipeline.forward_only(batch)
        return found if found is None else checked(found)
