"""A run's model cut into the stages of a pipeline: looked at, cut, and proven to be the same model.

Each process keeps its own blocks, and computes its stages alone as training will. What does not follow from what a
stage is given, because a later block reads what an earlier one left somewhere, is refused, and not trained wrongly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hasten.errors import JobError, PlanError
from hasten.facts.job import Loss
from hasten.parallel.grid import DATA
from hasten.parallel.left_early import LeftEarly
from hasten.parallel.options import ShardOptions
from hasten.parallel.pipeline.partial_forward import Passing
from hasten.parallel.pipeline.pipelined import Parts, Pipeline, spans_of
from hasten.parallel.pipeline.random_streams import Streams
from hasten.parallel.pipeline.stage_balance import least_largest
from hasten.parallel.pipeline.stage_sharding import Owners
from hasten.parallel.replicate.replicated import follow_the_leader, gather_over_ranks
from hasten.parallel.sparse import refuse_sparse
from hasten.training.nudged import Nudged
from hasten.training.row_of_blocks import FIX, Look, auxiliary_refused, refused
from hasten.training.stage_alone import check_stages
from hasten.training.step_parts.losses import Count
from hasten.training.step_parts.window_sums import weighed

if TYPE_CHECKING:
    from hasten.parallel.pipeline.sharded_stages import StagesInParts
    from hasten.parallel.tensor.tensor_sharding import Divided
    from hasten.training.run import Run


def stages_of(run: Run) -> Pipeline:
    """Keep this rank's stages of the model, in place: behind the optimizers, which number all parameters.

    Raises on all ranks Misconfigured for a model that is no row of blocks, JobError for a job that stages cannot train,
    and PlanError for blocks that are not called in the plan's order.
    """
    options, model, ranks = run.setup.pipeline, run.model, run.grid.stages
    assert options is not None
    _check_job(run)
    if run.divided is None:
        with torch.no_grad():  # a model need not be the same on each rank by itself
            follow_the_leader([*model.parameters(), *model.buffers()], run.grid.all)
    look, nudged = Look(run), Nudged(model)
    names = look.whole(options.blocks)
    seconds = gather_over_ranks([look.seconds], run.grid.all, run.device)[0]  # which differ from one rank to the other
    costs = _by_kind(seconds, [model.get_submodule(name) for name in names])
    before = [names.index(name) for name in options.before] or [*least_largest(costs, options.chunks)]
    if sorted({0, *before}) != [0, *before]:
        raise PlanError(
            f"before names {', '.join(options.before)}, which are not called in this order, behind another block",
            where="pipeline",
            fix=f"the order is {', '.join(names)}",
        )
    _check_hooks(model, [names[each] for each in before])
    streams = Streams(run.device, run.built.declared)
    passing = Passing([model.get_submodule(name) for name in names], streams.before_block, streams.behind_block)
    begins = [names[each] for each in before]
    parts = Parts(passing, spans_of(before, len(names)), begins, ranks)
    owner = {names[number]: parts.owner(stage) for stage, span in enumerate(parts.spans) for number in span}
    owners = _owners(model, owner, parts, run.divided)
    owners.free_others(model)
    for optimizer in run.optimizers:
        for each in _others(model, owners):
            optimizer.state.pop(each, None)
    pipeline = Pipeline(
        model,
        parts,
        owners,
        run.grid.data,
        run.device,
        runs_through=options.schedule == "gpipe",
        call=look.call,
        weighed=_weighed,
        untouched=look.untouched,
        left_early=LeftEarly(look.python, look.switches, look.moving, before, passing.blocks),
        streams=streams,
    )
    check_stages(look, pipeline)
    if not look.python.is_complete:
        run.notices.append("pipeline: so much hangs on the model that not all was looked through for what calls move")
    nudged.back(lambda name, held: held if owners.has(name) else held.new_empty((0, *held.shape[1:])))
    if run.setup.shard is not None and run.grid.data.many:
        pipeline.hold_in_parts(_in_parts(run, pipeline, run.setup.shard))
    run.notices.append(
        f"pipeline: {len(names)} blocks in {options.chunks} stages, cut before {', '.join(parts.begins)}"
    )
    return pipeline


def _check_hooks(model: nn.Module, begins: Sequence[str]) -> None:
    """torch hangs them on what a block is given, and a stage gives its first block something else."""
    for name in begins:
        block = model.get_submodule(name)
        if block._backward_hooks or block._backward_pre_hooks:
            fix = "hang it on a layer within the block, or leave `pipeline` out of the plan"
            raise refused(f"{name} has a backward hook, and begins a stage", fix)


def _in_parts(run: Run, pipeline: Pipeline, options: ShardOptions) -> StagesInParts:
    from hasten.parallel.pipeline.sharded_stages import StagesInParts

    parts, mesh = pipeline.parts, run.grid.mesh
    assert mesh is not None
    own = [parts.passing.blocks[number] for stage in parts.own for number in parts.spans[stage]]
    return StagesInParts(run.model, own, _others(run.model, pipeline.owners), run.optimizers, mesh[DATA], options)


def _check_job(run: Run) -> None:
    if run.built.train.iterable:
        raise JobError("train", "is an iterable data set, and a pipeline's microbatches are of equal size", FIX)
    refuse_sparse(run.model, "pipeline", "stages")
    if run.built.declared.has_more_than_generators:
        what = f"declares {', '.join(run.built.declared.parts)}, which one stage alone would change"
        raise JobError("state", what, "leave `pipeline` out of the plan, or hold it in the model")


def _by_kind(seconds: Sequence[float], blocks: Sequence[nn.Module]) -> list[float]:
    """Of each block the mean of those like it, so that one model is cut alike whenever it is measured; the last one's
    with what follows it."""
    kinds = [(type(each), tuple(parameter.shape for parameter in each.parameters())) for each in blocks]
    costs = [mean([each for each, other in zip(seconds, kinds, strict=False) if other == kind]) for kind in kinds]
    return [*costs[:-1], costs[-1] + seconds[-1]]


def _owners(model: nn.Module, owner: dict[str, int], parts: Parts, within: Divided | None) -> Owners:
    """owner: of blocks, by name. Raises Misconfigured for a parameter of a block that lies elsewhere too."""
    places = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    owners, shapes = dict[str, int](), dict[str, torch.Size]()
    buffers = dict[str, int]()
    for block, rank in owner.items():
        module = model.get_submodule(block)
        here = Counter(id(each) for _, each in module.named_parameters(remove_duplicate=False))
        for name, each in module.named_parameters(remove_duplicate=False):  # a state has every name
            if places[id(each)] != here[id(each)]:
                raise refused(f"{block}.{name} is a parameter of another part of the model as well")
            held = each if within is None else within.mark(f"{block}.{name}", each)
            owners[f"{block}.{name}"], shapes[f"{block}.{name}"] = rank, held.shape
        buffers |= {f"{block}.{name}": rank for name, _ in module.named_buffers()}
    return Owners(owners, shapes, buffers, parts.ranks, within)


def _others(model: nn.Module, owners: Owners) -> list[nn.Parameter]:
    return [each for name, each in model.named_parameters() if not owners.has(name)]


def _weighed(returned: Loss | Tensor, samples: int) -> tuple[Tensor, Count]:
    if isinstance(returned, Loss) and returned.auxiliary is not None:
        raise auxiliary_refused()
    return weighed(returned, samples)
