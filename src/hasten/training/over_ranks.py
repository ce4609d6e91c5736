"""What a run over several ranks does otherwise, by how they hold its model: nothing in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from hasten.checkpoint.sharded.rank_files import Pieced, assembled
from hasten.errors import Misconfigured, PlanError
from hasten.parallel.followed_buffers import FollowedBuffers
from hasten.parallel.grid import DATA
from hasten.parallel.options import ReplicaOptions
from hasten.parallel.replicate.replica_check import check_made_alike, check_same
from hasten.parallel.replicate.replicated import Replica, follow_the_leader
from hasten.parallel.sparse import refuse_sparse
from hasten.parallel.still_trained import StillTrained
from hasten.parallel.ways import Scores
from hasten.techniques.common.batch_split import normalizes_by_batch
from hasten.training.step_parts.losses import LossFunction

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from hasten.parallel.pipeline.pipelined import Pipeline
    from hasten.parallel.pipeline.stage_sharding import Owners
    from hasten.parallel.shard.sharded import Sharded
    from hasten.parallel.tensor.tensor_sharding import Divided
    from hasten.training.evaluate import Evaluation
    from hasten.training.run import Run

_OF_WHOLE_MATRICES = frozenset({"Adafactor", "LBFGS", "Muon", "Shampoo", "SOAP"})


def divided(run: Run) -> Divided | None:
    """Let ranks hold layers together, where the plan wants that and there are several. Before anything else holds the
    model's parameters."""
    options = run.setup.tensor
    if options is None or not run.grid.shares.many:
        return None
    from hasten.parallel.tensor.tensor_parallel import divide  # few runs need it
    from hasten.training.same_when_divided import checked_on_a_batch

    return checked_on_a_batch(run, options, lambda: divide(run.model, options, run.grid))


def looked_at(run: Run) -> StillTrained | None:
    """The job's loss where several ranks share its model, which looks whether that has become another one."""
    return StillTrained(run.job.loss, run.model) if run.ranks.many else None


def begin(run: Run) -> None:
    """It is known what is trained: Job.parameters may have frozen what the optimizers do not move."""
    for each in (run.looked_at, run.sharded):
        if each is not None:
            each.begin()
    check_made_alike(run.built.declared.named_parameters(), run.grid.data, run.ranks, run.device)


def loss_of(run: Run) -> LossFunction:
    """The job's. Over several ranks it computes on shares where a vocabulary is in shares."""
    if run.looked_at is None:
        return run.job.loss
    loss, options = _following(run, run.looked_at), run.setup.tensor
    if options is None or not run.grid.shares.many or not any(isinstance(way, Scores) for way in options.ways.values()):
        return loss
    from hasten.parallel.tensor.vocabulary import LossOfShares, computing_on_shares  # it takes a second to load

    run._open.enter_context(computing_on_shares())
    return LossOfShares(loss)


def _following(run: Run, loss: LossFunction) -> LossFunction:
    """The loss, with the buffers of declared modules, a centre for instance, as the first rank has them in each step:
    as those of the model are."""
    modules, ranks = [each for module in run.built.declared.modules for each in module.modules()], run.grid.data
    if not modules or not ranks.many or run.grid.stages.many:  # stages hold no such modules
        return loss
    return FollowedBuffers(loss, modules, ranks, run.device.type)


def notices_of(run: Run) -> list[str]:
    """What a person is to know of a batch that several ranks, or stages, take in parts."""
    ranks, stages, batch = run.grid.data, run.grid.stages.many, run.built.batch_size
    if not (ranks.many or stages) or not normalizes_by_batch(run.model, on_each_rank=ranks.many and not stages):
        return []
    samples = min(-(-batch // ranks.size), run.microbatch_size or batch)
    if stages and run.setup.pipeline is not None:
        samples = -(-samples // run.setup.pipeline.microbatches)
    what = f"batch norm sees {samples} samples at a time, and not the {batch} of a batch: its statistics are noisier"
    told = [f"{what}, and those of the first process are evaluated and saved" if ranks.many else what]
    if run.loader.leaves_single:
        what = (
            "an epoch's last batch leaves some process a single sample, and a batch norm over samples alone fails there"
        )
        told.append(f"{what}: drop_last=True or another batch_size avoids that")
    return told


def on_device(run: Run) -> nn.Module:
    """The model; still on the host where it becomes parts on its way to the device."""
    setup, alone = run.setup, run.grid.mesh is None and run.grid.data.many
    return setup.model if alone and setup.shard is not None else setup.model.to(setup.device)


def sharded(run: Run) -> Sharded | None:
    """Take what a rank holds of the model apart, where the plan wants that and there are several of them. Before
    anything else holds its parameters."""
    options, ranks, mesh = run.setup.shard, run.grid.data, run.grid.mesh
    if options is None or not ranks.many:
        if options is not None and run.ranks.many:
            run.notices.append("shard: all processes hold one model together, so no two could share what they hold")
        return None
    if options.parameters is not None and run.setup.step.autocast is not options.parameters:
        what = 'parameters = "bf16" gathers layers in a format that only precision = "bf16" computes in'
        raise PlanError(what, where="shard", fix='add precision = "bf16" to the plan')
    if options.made_once and run.grid.mesh is not None:
        what = "meta leaves weights to the first process, and `tensor` and `pipeline` divide them where they are made"
        raise PlanError(what, where="shard", fix="leave meta out")
    from hasten.parallel.shard.sharded import Sharded, check_shapes  # it takes a second to load

    check_shapes(run.model)
    refuse_sparse(run.model, "shard", "processes that hold parts")
    if run.grid.stages.many:
        return None  # the stages are first to be cut
    return Sharded(
        run.loss,
        run.model,
        ranks,
        run.device,
        options,
        mesh=None if mesh is None else mesh[DATA],
    )


def check_optimizers(run: Run) -> None:
    """Raises Misconfigured for one that looks at whole matrices, where ranks hold shares of them."""
    for optimizer in run.optimizers if run.divided is not None else ():
        if type(optimizer).__name__ in _OF_WHOLE_MATRICES:
            what = f"{type(optimizer).__name__} looks at whole matrices, and each process would have its share of them"
            raise Misconfigured(what, where="tensor", fix="take another optimizer, or leave `tensor` out of the plan")


def pipeline(run: Run) -> Pipeline | None:
    """Keep a stage of the model, where the plan wants that and there are several ranks. Behind the optimizers."""
    if run.setup.pipeline is None or not run.grid.stages.many:
        return None
    from hasten.training.staged import stages_of  # it takes a while to load

    return stages_of(run)


def parts_of(run: Run) -> Divided | Owners | None:
    """Those of the model's parameters of which this rank holds a share, or nothing."""
    return run.divided if run.pipeline is None else run.pipeline.owners


def settle_buffers(run: Run) -> None:
    """Let all ranks have those that are evaluated and saved: the leader's. Of a pipeline's blocks their
    stage's, and the last stage's around them.

    Each step begins with the leader's buffers, so its averages of running statistics are right after any number of
    updates. Those of the other ranks are of their own samples, and are needed in evaluations alone: to send them here
    costs nothing in a step.
    """
    with torch.no_grad():
        if run.pipeline is None:
            averages = run.average.statistics if run.average is not None else []
            follow_the_leader([*run.model.buffers(), *averages], run.ranks)
        else:
            follow_the_leader(run.model.buffers(), run.grid.data)
            run.pipeline.owners.settle_buffers(run.model, run.device)


def as_the_leader_has_it(run: Run, evaluation: Evaluation) -> Evaluation:
    """With the first rank's results on all of them: a last bit that differs would end one of them before the others."""
    if not run.ranks.many:
        return evaluation
    values = torch.tensor([*evaluation.results.values()], dtype=torch.float64, device=run.device)
    follow_the_leader([values], run.ranks)
    return replace(evaluation, results=dict(zip(evaluation.results, values.tolist(), strict=True)))


def check_replicas(run: Run) -> None:
    """Raises JobError, on all ranks, where replicas have gone their own ways: before they are evaluated or saved."""
    pipeline, named = run.pipeline, run.built.declared.named_parameters()
    if run.replica is not None or (pipeline is not None and pipeline.in_parts is None):
        held = run.model.named_parameters()
        named += [each for each in held if pipeline is None or pipeline.owners.has(each[0])]
    check_same(named, run.grid.data, run.ranks, run.device)


def replica(run: Run) -> Replica | None:
    """The loss over all ranks, where each holds the whole of what it holds and there are several."""
    ranks = run.grid.data
    if run.sharded is None and not ranks.many and run.ranks.many and run.setup.replica != ReplicaOptions():
        run.notices.append("communication: all processes hold one model together, so there are no replicas that talk")
    if run.sharded is not None or run.pipeline is not None or not ranks.many:
        return None
    return Replica(run.loss, run.model, ranks, run.setup.replica)


def marked(run: Run, named: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors by the names of the model's state, with a mark on those of which this rank holds a share."""
    parts = parts_of(run)
    return dict(named) if parts is None else parts.marked(named)


def whole_state(run: Run, state: Any, *, on_all: bool = False) -> Any:
    """A tree with every tensor whole, on the leader, or on all ranks; the tree itself where all are."""
    if not holds_parts(run):
        return state
    from hasten.parallel.whole import whole

    return whole(state, run.ranks, on_all=on_all)


def holds_parts(run: Run) -> bool:
    """Whether the ranks hold the model in parts, so that each of them saves its own."""
    return run.sharded is not None or parts_of(run) is not None


def to_save(run: Run, state: Any) -> Any:
    """A tree with a mark in the place of every tensor in parts, of what this rank saves of it; the tree itself where
    all are whole."""
    if not holds_parts(run):
        return state
    from hasten.training.state.held_parts import with_parts_held

    return with_parts_held(state, run.grid)


def own_part(run: Run, name: str, saved: Any, like: Tensor) -> Any:
    """What this rank holds of a tensor that was saved, whole or in pieces, as it holds `like`. name: of the parameter
    that it belongs to. Of one in pieces no more is read than what is held, unless it is a share of a layer."""
    if isinstance(saved, Pieced) and hasattr(like, "to_local") and saved.shape == like.shape:
        from hasten.parallel.slabs import part_read

        return part_read(saved.region, cast("DTensor", like))
    return part_of(share(run, name, saved), like)


def share(run: Run, name: str, saved: Any) -> Any:
    """What this rank holds of it, where layers are divided; put together, where it was saved in pieces."""
    parts, saved = parts_of(run), assembled(saved)
    return saved if parts is None or not isinstance(saved, Tensor) else parts.share(name, saved)


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """What this rank holds of a tensor that was saved whole, as it holds `like`."""
    if not hasattr(like, "to_local"):
        return whole
    from hasten.parallel.whole import part_of

    return part_of(whole, like)
