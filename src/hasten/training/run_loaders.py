"""What a run reads its data with: the training's loader, and the evaluator with a loader of its own."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch

from hasten.data.loading.batch_loader import EvaluationLoader, Microbatch, TrainLoader
from hasten.data.loading.device_transfer import copied, copied_ahead
from hasten.data.loading.loader_options import Placement
from hasten.errors import JobError
from hasten.training.evaluate import Evaluator
from hasten.training.step_parts.losses import LossFunction

if TYPE_CHECKING:
    from hasten.training.run import Run


def train_loader(run: Run, microbatch_size: int | None, batch_size: int | None = None) -> TrainLoader:
    """microbatch_size: samples in one forward pass; None takes a rank's whole share of the global batch. batch_size: of
    that; None is the run's own."""
    job, built = run.job, run.built
    return TrainLoader(
        built.train,
        batch_size=batch_size or built.batch_size,
        microbatch_size=microbatch_size,
        equal_parts=parts_at_least(run),
        options=built.setup.loader,
        seed=job.seed,
        shuffle=job.shuffle,
        drop_last=job.drop_last,
        replace_bad=job.on_bad_sample == "replace",
        placement=placement_of(run),
        rank=run.grid.data.rank,
        world_size=run.grid.data.size,
    )


def parts_at_least(run: Run) -> int | None:
    """Microbatches that a pipeline asks for; None without one."""
    options = run.setup.pipeline
    return None if options is None or not run.grid.stages.many else options.microbatches


def on_device(run: Run, microbatches: Iterator[Microbatch]) -> Iterator[Microbatch]:
    """The training's, where the run computes; copied ahead of their use where the plan wants that."""
    if run._stays_on_host:
        return microbatches

    def placed(batch: Any) -> Any:
        return run._placed(batch, run.built.train)

    depth = run.setup.loader.device_prefetch
    if not depth or run.built.train.on_accelerator:  # what is gathered on the device is made by its own stream
        return copied(microbatches, placed)
    if run._copying is None:
        run._copying = torch.cuda.Stream(run.device)
    return copied_ahead(microbatches, placed, run._copying, depth)


def placement_of(run: Run) -> Placement:
    return Placement(
        accelerator=run.device.type != "cpu",
        transforms=run.setup.loader.device_transform,
        channels_last=run.setup.step.memory_format is torch.channels_last,
    )


def _evaluation_loss(run: Run) -> LossFunction:
    if run.job.eval_loss is None:
        return run.sharded or run.loss
    if run.sharded is not None or run.pipeline is not None:
        what = "is given, and with `shard` or `pipeline` evaluations compute the loss of the training"
        raise JobError("eval_loss", what, "leave it out, or leave the technique out of the plan")
    return run.job.eval_loss


def evaluator_of(run: Run) -> Evaluator | None:
    """None for a job without valid data. What is to be told of the data is added to the run's notices.

    Raises what would stop the first evaluation's loader workers: not at the first evaluation, which may be hours away.
    """
    valid, setup = run.built.valid, run.setup
    if valid is None:
        return None
    held: Run = weakref.proxy(run)  # strongly, it would be a circle, which keeps the model until a collector comes

    def loader(batch_size: int) -> EvaluationLoader:
        return EvaluationLoader(
            valid,
            batch_size=batch_size,
            options=valid.options or setup.loader,
            seed=held.job.seed,
            placement=placement_of(held),
            rank=held.grid.data.rank,
            world_size=held.grid.data.size,
            equally_many=held.sharded is not None,  # each forward pass gathers from all ranks
        )

    def batches(batch_size: int) -> Generator[tuple[Any, int]]:
        with closing(loader(batch_size)) as microbatches:
            for microbatch in microbatches:
                held.check_stop()
                counted = valid.counted(microbatch.batch, microbatch.samples)
                yield held._placed(microbatch.batch, valid), counted if microbatch.samples else 0

    batch_size = setup.evaluation.batch_size or valid.batch_size or run.built.batch_size
    with closing(loader(batch_size)) as first:
        run.notices += [notice for notice in first.notices if notice not in run.notices]
        # Between two epochs the training's workers hold nothing.
        first.check_before_start(run.loader if run.job.evaluate_every is not None else None)
    return Evaluator(
        run.model,
        _evaluation_loss(run),
        run.job.metrics,
        batches,
        batch_size,
        device=run.device,
        autocast=setup.step.autocast,
        ranks=run.grid.data,
        together=run.sharded is not None or run.grid.together > 1,
        pipeline=run.pipeline,
    )
