"""The strategy of a run over several ranks, by the plan and the ranks that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hasten.data.order.randomness import undisturbed
from hasten.errors import JobError, PlanError
from hasten.facts.job import Loss
from hasten.parallel.grid import Grid
from hasten.parallel.options import ReplicaOptions
from hasten.parallel.replicate.replica_check import check_same_declared
from hasten.parallel.strategy import FollowedBuffers, LossFunction, Single, Strategy, Workload
from hasten.techniques.common.batch_split import normalizes_by_batch
from hasten.techniques.common.restored_state import same_state
from hasten.techniques.setup import Setup
from hasten.training.setup.prepared_job import PreparedJob
from hasten.training.step_parts.losses import Count, calling, checked, mean_and_count
from hasten.training.step_parts.window import weighed

Enter = Callable[[AbstractContextManager[Any]], Any]


def strategy_of(prepared: PreparedJob, grid: Grid, first_batch: Callable[[], Any], enter: Enter) -> Strategy:
    """first_batch: the first microbatch on the device. enter: keeps a context open until the run is closed.

    Raises JobError or PlanError for what the job or the plan's other choices rule out.
    """
    setup, device = prepared.setup, prepared.setup.device
    _check_shard(setup, grid)
    setup.notices += _without_effect(setup, grid)
    workload = _workload(prepared, grid, first_batch)
    pipelined = setup.pipeline is not None and grid.stages.many
    over_data = Single(device, grid) if pipelined else _over_data(setup, grid)
    layers: Strategy | None = None
    if setup.tensor is not None and grid.shares.many:
        from hasten.parallel.tensor.tensor_parallel import TensorParallel  # each takes a while to load

        layers = TensorParallel(over_data, setup.tensor, device, workload, enter)
    if setup.pipeline is None or not grid.stages.many:
        return layers or over_data
    _check_pipeline_job(prepared)
    from hasten.parallel.pipeline.pipelined import Pipelined
    from hasten.training.step_parts.pipeline_streams import Streams

    return Pipelined(device, grid, setup.pipeline, workload, Streams(device), layers=layers, shard=setup.shard)


def followed_loss(prepared: PreparedJob, grid: Grid) -> LossFunction:
    """The job's loss; over data ranks, with the buffers of declared modules as the first rank has them."""
    declared, loss = prepared.declared, prepared.setup.job.loss
    check_same_declared(declared.named_parameters(), grid, prepared.setup.device)
    if not declared.modules or not grid.data.many or grid.stages.many:  # stages hold no declared modules
        return loss
    return FollowedBuffers(loss, declared.modules, grid)


def _over_data(setup: Setup, grid: Grid) -> Strategy:
    if not grid.data.many:
        return Single(setup.device, grid)
    if setup.shard is not None:
        from hasten.parallel.shard.sharded import Sharded

        return Sharded(setup.device, grid, setup.shard)
    from hasten.parallel.replicate.replicated import Replicated

    return Replicated(setup.device, grid, setup.replica)


def _without_effect(setup: Setup, grid: Grid) -> list[str]:
    if grid.data.many:
        return []
    chosen = {"communication": setup.replica != ReplicaOptions(), "shard": setup.shard is not None}
    return [f"{name} has no effect: all processes hold one model together" for name, each in chosen.items() if each]


def _check_shard(setup: Setup, grid: Grid) -> None:
    options = setup.shard
    if options is None or not grid.data.many:
        return
    if options.parameters is not None and setup.step.autocast is not options.parameters:
        what = 'parameters = "bf16" is valid only with precision = "bf16"'
        raise PlanError(what, where="shard", fix='add precision = "bf16" to the plan')
    if options.made_once and grid.mesh is not None:
        what = "meta initializes the model on the first process only, but `tensor` and `pipeline` need it on each"
        raise PlanError(what, where="shard", fix="remove meta")


def _check_pipeline_job(prepared: PreparedJob) -> None:
    fix = "remove `pipeline` from the plan"
    if prepared.train.iterable or prepared.train.batches is not None:
        what = "is an iterable data set" if prepared.train.iterable else "has its own batch_sampler"
        raise JobError("train", f"{what}, and a pipeline's microbatches must be of equal size", fix)
    if prepared.declared:
        what = f"declares {', '.join(prepared.declared.parts)}, which only one stage would change"
        raise JobError("state", what, f"{fix}, or move it into the model; draw from torch's default generator")


def _workload(prepared: PreparedJob, grid: Grid, first_batch: Callable[[], Any]) -> Workload:
    setup = prepared.setup
    call = calling(setup.device, setup.step.autocast)

    def checked_call(loss: LossFunction, model: nn.Module, batch: Any) -> Loss | Tensor:
        return checked(call(loss, model, batch)) if torch.is_grad_enabled() else call(loss, model, batch)

    def weighed_without_auxiliary(returned: Loss | Tensor, samples: int) -> tuple[Tensor, Count]:
        if isinstance(returned, Loss) and returned.auxiliary is not None:
            what = "has an auxiliary term, which is divided by a different count than the total"
            raise JobError("loss", what, "remove `pipeline` from the plan, or add the term to the total")
        if isinstance(returned, Loss) and returned.parts and torch.is_grad_enabled():
            what = "returns parts, which a pipeline does not add up"
            raise JobError("loss", what, "remove `pipeline` from the plan, or return the parts in eval_loss alone")
        return weighed(returned, samples)

    @contextmanager
    def untouched(model: nn.Module) -> Iterator[None]:
        with undisturbed(setup.device), same_state(model), prepared.declared.preserved():
            yield

    return Workload(
        batch=first_batch,
        samples=lambda: -(-prepared.batch_size // grid.data.size),
        call=checked_call,
        mean=lambda returned: mean_and_count(returned, 1)[0],
        weighed=weighed_without_auxiliary,
        untouched=untouched,
    )


def batch_norm_notices(prepared: PreparedJob, grid: Grid, microbatch: int | None, leaves_single: bool) -> list[str]:
    """Notices about a batch that several ranks or stages compute in parts. leaves_single: an epoch's last batch, or one
    of a batch sampler, gives some rank one sample."""
    ranks, stages = grid.data, grid.stages.many
    model, batch, setup = prepared.setup.model, prepared.batch_size, prepared.setup
    if not (ranks.many or stages) or not normalizes_by_batch(model, on_each_rank=ranks.many and not stages):
        return []
    samples = min(-(-batch // ranks.size), microbatch or batch)
    if stages and setup.pipeline is not None:
        samples = -(-samples // setup.pipeline.microbatches)
    what = f"batch norm uses {samples} samples at a time instead of the batch of {batch}: its statistics are noisier"
    found = [f"{what}, and those of the first process are evaluated and saved" if ranks.many else what]
    if leaves_single:
        listed = prepared.train.batches is not None
        which = "a batch of the batch_sampler" if listed else "an epoch's last batch"
        cure = "larger batches avoid that" if listed else "drop_last=True or another batch_size avoids that"
        found.append(f"{which} leaves some process one sample, where batch norm over samples fails: {cure}")
    return found
