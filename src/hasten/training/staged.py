"""A run's model cut into the stages of a pipeline: looked at, cut, and proven to be the same model.

Before anything is trained, every process computes the loss of one microbatch whole. That says in which order the blocks
are called and how long each takes. Then each keeps its own blocks and computes its stage alone, from what its first
block was given in the whole: what it hands on has to be what the next block was given, and the last one's loss the
loss. So a model that is more than a row of blocks, where a later block reads what an earlier one left somewhere, is
refused, and not trained wrongly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hasten.errors import JobError, PlanError
from hasten.facts.loss import Loss
from hasten.parallel.cuts import least_largest
from hasten.parallel.grid import DATA
from hasten.parallel.options import PipelineOptions, ShardOptions
from hasten.parallel.owners import Owners
from hasten.parallel.passing import Passing
from hasten.parallel.pipeline import Parts, Pipeline, spans_of
from hasten.parallel.replicate import follow_the_leader, gather_over_ranks
from hasten.training.losses import Count
from hasten.training.nudged import Nudged
from hasten.training.stage_look import FIX, StageLook, no_auxiliary, refused
from hasten.training.streams import Streams
from hasten.training.window_sums import weighed

if TYPE_CHECKING:
    from hasten.parallel.stages_in_parts import StagesInParts
    from hasten.training.run import Run


def stages_of(run: Run) -> Pipeline:
    """Keep this rank's stages of the model, in place: behind the optimizers, which number all parameters.

    Raises Misconfigured for a model that is no row of blocks, on all ranks.
    """
    options, model = run.setup.pipeline, run.model
    assert options is not None
    _check_job(run)
    if run.divided is None:
        with torch.no_grad():  # a model need not be the same on each rank by itself
            follow_the_leader([*model.parameters(), *model.buffers()], run.grid.all)
    look, nudged = StageLook(run), Nudged(model)
    parts, streams = _cut(run, options, look)
    of_blocks = _owners_of_blocks(run, parts)
    # Of no rank alone yet: the proof does not see buffers, predictions or comparisons that a stand-in would bend.
    alone = _of_one_rank(of_blocks, ())
    of_blocks.free_others(model)
    pipeline = Pipeline(
        model,
        parts,
        of_blocks.with_more(model, alone),
        run.grid.data,
        run.device,
        runs_through=options.schedule == "gpipe",
        call=look.call,
        weighed=_weighed,
        untouched=look.untouched,
        streams=streams,
    )
    reasons = look.reasons(pipeline)
    if reasons and alone:  # a stage may depend on a weight without a gradient
        pipeline.take_over(of_blocks)
        reasons = look.reasons(pipeline)
    if reasons:
        raise refused(reasons[0])
    look.forget()
    _keep_own(run, pipeline.owners)
    nudged.back(pipeline.owners.own)
    if run.setup.shard is not None and run.grid.data.many:
        pipeline.hold_in_parts(_in_parts(run, pipeline, run.setup.shard))
    run.notices.append(
        f"pipeline: {len(parts.passing.blocks)} blocks in {options.chunks} stages, cut before {', '.join(parts.begins)}"
    )
    return pipeline


def _cut(run: Run, options: PipelineOptions, look: StageLook) -> tuple[Parts, Streams]:
    names = look.whole(options.blocks)
    blocks = [run.model.get_submodule(name) for name in names]
    seconds = gather_over_ranks([look.seconds], run.grid.all, run.device)[0]  # which differ from one rank to the other
    before = [names.index(name) for name in options.before]
    before = before or [*least_largest(_by_kind(seconds, blocks), options.chunks)]
    if sorted({0, *before}) != [0, *before]:
        raise PlanError(
            f"before names {', '.join(options.before)}, which are not called in this order, behind another block",
            where="pipeline",
            fix=f"the order is {', '.join(names)}",
        )
    generators = run.built.generators
    streams = Streams(run.device, generators.states, generators.go_on_from)
    passing = Passing(blocks, streams.before_block, streams.behind_block)
    return Parts(passing, names, spans_of(before, len(names)), run.grid.stages), streams


def _in_parts(run: Run, pipeline: Pipeline, options: ShardOptions) -> StagesInParts:
    from hasten.parallel.stages_in_parts import StagesInParts

    parts, mesh = pipeline.parts, run.grid.mesh
    assert mesh is not None
    own = [parts.passing.blocks[number] for stage in parts.own for number in parts.spans[stage]]
    return StagesInParts(run.model, own, _others(run.model, pipeline.owners), run.optimizers, mesh[DATA], options)


def _check_job(run: Run) -> None:
    if run.built.train.iterable:
        raise JobError("train", "is an iterable data set, and a pipeline's microbatches are of equal size", FIX)
    for name, module in run.model.named_modules():
        if getattr(module, "sparse", False) is True and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            what = f"has sparse gradients in {name}, which stages cannot sum"
            raise JobError("model", what, "build it with sparse=False, or leave `pipeline` out of the plan")
    for module in run.built.loss_parameters.modules:
        holds = bool(module._parameters or module._buffers)
        if holds and not type(module).__module__.startswith("torch.nn.modules.loss"):
            what = f"holds {type(module).__name__}, which the last stage alone would move"
            raise JobError("loss", what, "leave `pipeline` out of the plan, or hold it in the model")


def _by_kind(seconds: Sequence[float], blocks: Sequence[nn.Module]) -> list[float]:
    """Of each block the mean of those like it, so that one model is cut alike whenever it is measured; the last one's
    with what follows it."""
    kinds = [(type(each), tuple(parameter.shape for parameter in each.parameters())) for each in blocks]
    costs = [mean([each for each, other in zip(seconds, kinds, strict=False) if other == kind]) for kind in kinds]
    return [*costs[:-1], costs[-1] + seconds[-1]]


def _owners_of_blocks(run: Run, parts: Parts) -> Owners:
    """Raises Misconfigured for a parameter of a block that lies elsewhere too."""
    model = run.model
    places = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    owners, buffers = dict[str, int](), dict[str, int]()
    for stage, span in enumerate(parts.spans):
        for block in (parts.names[number] for number in span):
            module, rank = model.get_submodule(block), parts.owner(stage)
            here = Counter(id(each) for _, each in module.named_parameters(remove_duplicate=False))
            for name, each in module.named_parameters():
                if places[id(each)] != here[id(each)]:
                    raise refused(f"{block}.{name} is a parameter of another part of the model as well")
                owners[f"{block}.{name}"] = rank
            buffers |= {f"{block}.{name}": rank for name, _ in module.named_buffers()}
    return Owners({}, {}, buffers, parts.ranks, run.divided).with_more(model, owners)


def _of_one_rank(of_blocks: Owners, reached: Iterable[tuple[str, int]]) -> dict[str, int]:
    """What lies around the blocks, and one rank's stages alone are differentiated by."""
    ranks = dict[str, set[int]]()
    for name, rank in reached:
        ranks.setdefault(name, set()).add(rank)
    return {
        name: min(found) for name, found in sorted(ranks.items()) if len(found) == 1 and name not in of_blocks.owners
    }


def _keep_own(run: Run, owners: Owners) -> None:
    owners.free_others(run.model)
    for optimizer in run.optimizers:
        for each in _others(run.model, owners):
            optimizer.state.pop(each, None)


def _others(model: nn.Module, owners: Owners) -> list[nn.Parameter]:
    return [each for name, each in model.named_parameters() if not owners.has(name)]


def _weighed(returned: Loss | Tensor, samples: int) -> tuple[Tensor, Count]:
    if isinstance(returned, Loss) and returned.auxiliary is not None:
        raise no_auxiliary()
    return weighed(returned, samples)
