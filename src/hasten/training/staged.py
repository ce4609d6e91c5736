"""A run's model cut into the stages of a pipeline: looked at, cut, and proven to be the same model.

Before anything is trained, every process computes the loss of one microbatch whole. That says in which order the blocks
are called and how long each takes. Then each keeps its own blocks and computes its stage alone, from what its first
block was given in the whole: what it hands on has to be what the next block was given, and the last one's loss the
loss. So a model that is more than a row of blocks, where a later block reads what an earlier one left somewhere, is
refused, and not trained wrongly.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hasten.data.randomness import undisturbed
from hasten.errors import JobError, Misconfigured, PlanError
from hasten.facts.loss import Loss
from hasten.parallel.cuts import least_largest
from hasten.parallel.grid import DATA
from hasten.parallel.options import ShardOptions
from hasten.parallel.owners import Owners
from hasten.parallel.passing import Passing
from hasten.parallel.pipeline import Parts, Pipeline, spans_of
from hasten.parallel.replicate import follow_the_leader, gather_over_ranks
from hasten.techniques._restore import same_state
from hasten.training.build import seed_everything
from hasten.training.losses import Count, calling, checked
from hasten.training.nudged import Nudged
from hasten.training.streams import Streams
from hasten.training.window_sums import weighed

if TYPE_CHECKING:
    from hasten.parallel.divided import Divided
    from hasten.parallel.stages_in_parts import StagesInParts
    from hasten.training.run import Run

_FIX = "leave `pipeline` out of the plan, or let the model call its blocks one behind the other"


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
    look, nudged = _Look(run), Nudged(model)
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
    generators = run.built.generators
    streams = Streams(run.device, generators.states, generators.go_on_from)
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
        streams=streams,
    )
    look.check_stages(pipeline)
    nudged.back(lambda name, held: held if owners.has(name) else held.new_empty((0, *held.shape[1:])))
    if run.setup.shard is not None and run.grid.data.many:
        pipeline.hold_in_parts(_in_parts(run, pipeline, run.setup.shard))
    run.notices.append(
        f"pipeline: {len(names)} blocks in {options.chunks} stages, cut before {', '.join(parts.begins)}"
    )
    return pipeline


def _in_parts(run: Run, pipeline: Pipeline, options: ShardOptions) -> StagesInParts:
    from hasten.parallel.stages_in_parts import StagesInParts

    parts, mesh = pipeline.parts, run.grid.mesh
    assert mesh is not None
    own = [parts.passing.blocks[number] for stage in parts.own for number in parts.spans[stage]]
    return StagesInParts(run.model, own, _others(run.model, pipeline.owners), run.optimizers, mesh[DATA], options)


class _Whole(NamedTuple):
    """What the whole model has computed of a microbatch, in one mode. given: to each block, in first. buffers: as they
    were behind it."""

    given: dict[str, Tensor]
    returned: Loss | Tensor
    buffers: dict[str, Tensor]


class _Look:
    """At one microbatch of the run, in both modes. No trace is left."""

    def __init__(self, run: Run) -> None:
        held: Run = weakref.proxy(run)  # strongly, it would be a circle, which keeps the model until a collector comes
        self._run, self._names = held, list[str]()
        self.call: Callable[[Any], Any] = partial(calling(run.device, run.setup.step.autocast), run.loss, run.model)
        self._batch: Any = run._placed(run.loader.first_batch(), run.built.train)
        self._wholes = dict[bool, _Whole]()  # by whether the model trains
        self._times = list[float]()  # at which each block began, the last one ended, and all did
        self.seconds = list[float]()  # of each block, with what follows it up to the next; of what follows the last

    def whole(self, blocks: Sequence[str]) -> list[str]:
        """The blocks in the order of their calls. Raises Misconfigured where they are no row."""
        self._compute(blocks, training=True)  # warms up
        self._names = self._compute(blocks, training=True)
        self.seconds = [stop - start for start, stop in pairwise(self._times)]
        if self._compute(blocks, training=False) != self._names:
            raise _refused("the blocks are called in another order while it evaluates")
        return self._names

    def _compute(self, blocks: Sequence[str], *, training: bool) -> list[str]:
        """The blocks in the order of their calls."""
        calls, begun = list[str](), list[float]()
        given, outputs, last = dict[str, Tensor](), dict[str, Any](), 0.0

        def enter(name: str, to: tuple[Any, ...]) -> None:
            calls.append(name)
            if to and isinstance(to[0], Tensor):
                given[name] = to[0].clone()  # a block may write to what it is given
            begun.append(self._now())

        def leave(name: str, gives: Any) -> None:
            nonlocal last
            outputs[name], last = type(gives), self._now()

        with self.untouched(), torch.no_grad(), self._watched(blocks, enter, leave):
            self._begin(training)
            returned = checked(self.call(self._batch))
            self._times = [*begun, last, self._now()]
            buffers = {name: each.clone() for name, each in self._run.model.named_buffers()}
        _check_row(blocks, Counter(calls), given, outputs)
        if isinstance(returned, Loss) and returned.auxiliary is not None:
            raise _auxiliary()
        self._wholes[training] = _Whole(given, returned, buffers)
        return calls

    def check_stages(self, pipeline: Pipeline) -> None:
        """Raises Misconfigured, on all ranks, where a stage alone does not compute what it did in the whole."""
        modes = [(stage, training) for stage in pipeline.parts.own for training in (True, False)]
        own = [reason for stage, training in modes if (reason := self._differs(pipeline, stage, training))]
        reasons = gather_over_ranks(own, self._run.grid.all, self._run.device)
        if reasons:
            raise _refused(reasons[0])
        self._wholes.clear()
        self._batch = None

    def _differs(self, pipeline: Pipeline, stage: int, training: bool) -> str:
        """Why; empty where it does not."""
        names, span, whole = self._names, pipeline.parts.spans[stage], self._wholes[training]
        received = whole.given[names[span.start]].clone() if stage else None
        when = "" if training else " while it evaluates"
        try:
            with self.untouched(), torch.no_grad(), self._watched(names, lambda *_: None, lambda *_: None):
                self._begin(training)
                found = pipeline.compute(stage, received, self._batch)
                moved = self._moved_otherwise(pipeline, stage, whole.buffers)
        except Exception as error:
            told = " ".join(f"{type(error).__name__}: {error}".split())
            return f"stage {stage + 1} cannot be computed alone{when}: {told}"
        if span.stop < len(names):
            other = "" if _alike(found, whole.given[names[span.stop]]) else f"what {names[span.stop]} is given"
        else:
            other = _other_in_loss(found, whole.returned)
        other = other or moved
        return f"{other} does not follow from what {names[span.start]} is given{when}" if other else ""

    def _moved_otherwise(self, pipeline: Pipeline, stage: int, wanted: Mapping[str, Tensor]) -> str:
        """The name of a buffer that this stage moves, and not as the whole has; empty where there is none."""
        names, span = self._names, pipeline.parts.spans[stage]
        blocks = tuple(f"{names[number]}." for number in span)
        for name, each in self._run.model.named_buffers():
            last_moves = span.stop == len(names) and name not in pipeline.owners.buffers
            if (last_moves or name.startswith(blocks)) and not _alike(each, wanted[name]):
                return name
        return ""

    def _begin(self, training: bool) -> None:
        if not training:
            self._run.model.eval()

    @contextmanager
    def untouched(self) -> Iterator[None]:
        run = self._run
        drawn, kept = run.built.generators.states(), [(each, dict(vars(each))) for each in run.model.modules()]
        try:
            with undisturbed(run.device), same_state(run.model):
                yield
        finally:
            run.built.generators.go_on_from(drawn)
            for module, attributes in kept:
                vars(module).clear()
                vars(module).update(attributes)

    @contextmanager
    def _watched(
        self,
        blocks: Sequence[str],
        enter: Callable[[str, tuple[Any, ...]], None],
        leave: Callable[[str, Any], None],
    ) -> Iterator[None]:
        """Call these around each block's forward. It draws the same whatever was drawn before, and what follows it the
        same whatever it draws."""
        generators = self._run.built.generators
        drawn = generators.states()

        def begin() -> None:
            seed_everything(0)
            generators.go_on_from(drawn)

        def before(name: str, block: nn.Module, given: Any) -> None:
            begin()
            enter(name, given)

        def after(name: str, block: nn.Module, given: Any, gives: Any) -> None:
            leave(name, gives)
            begin()

        begin()
        hooks = list[Any]()
        try:
            for name in blocks:
                block = self._run.model.get_submodule(name)
                hooks.append(block.register_forward_pre_hook(partial(before, name)))
                hooks.append(block.register_forward_hook(partial(after, name)))
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _now(self) -> float:
        if self._run.device.type == "cuda":
            torch.cuda.synchronize(self._run.device)  # queued kernels would be billed to the next block
        return time.perf_counter()


def _check_job(run: Run) -> None:
    if run.built.train.iterable:
        raise JobError("train", "is an iterable data set, and a pipeline's microbatches are of equal size", _FIX)
    for name, module in run.model.named_modules():
        if getattr(module, "sparse", False) is True and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            what = f"has sparse gradients in {name}, which stages cannot sum"
            raise JobError("model", what, "build it with sparse=False, or leave `pipeline` out of the plan")
    for module in run.built.loss_parameters.modules:
        holds = bool(module._parameters or module._buffers)
        if holds and not type(module).__module__.startswith("torch.nn.modules.loss"):
            what = f"holds {type(module).__name__}, which the last stage alone would move"
            raise JobError("loss", what, "leave `pipeline` out of the plan, or hold it in the model")


def _check_row(blocks: Sequence[str], calls: Counter[str], given: dict[str, Tensor], outputs: dict[str, type]) -> None:
    for name in blocks:
        if calls[name] != 1:
            raise _refused(f"{name} is called {calls[name]} times in a forward pass")
        if name not in given or not given[name].is_floating_point():
            raise _refused(f"{name} is not called with a tensor of floating-point numbers in first")
        if not issubclass(outputs[name], Tensor):
            raise _refused(f"{name} returns {outputs[name].__name__}, and not one tensor")


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
                raise _refused(f"{block}.{name} is a parameter of another part of the model as well")
            held = each if within is None else within.mark(f"{block}.{name}", each)
            owners[f"{block}.{name}"], shapes[f"{block}.{name}"] = rank, held.shape
        buffers |= {f"{block}.{name}": rank for name, _ in module.named_buffers()}
    return Owners(owners, shapes, buffers, parts.ranks, within)


def _others(model: nn.Module, owners: Owners) -> list[nn.Parameter]:
    return [each for name, each in model.named_parameters() if not owners.has(name)]


def _weighed(returned: Loss | Tensor, samples: int) -> tuple[Tensor, Count]:
    if isinstance(returned, Loss) and returned.auxiliary is not None:
        raise _auxiliary()
    return weighed(returned, samples)


def _other_in_loss(found: Loss | Tensor, wanted: Loss | Tensor) -> str:
    """What of a loss is another one; empty where nothing is."""
    for what, *pair in zip(("the loss", "its prediction", "its target"), _values(found), _values(wanted), strict=True):
        here, there = pair
        if len(here) != len(there) or not all(map(_alike, here, there)):
            return what
    return ""


def _values(returned: Loss | Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    if isinstance(returned, Tensor):
        return [returned], [], []
    count = torch.as_tensor(returned.count, device=returned.total.device).to(returned.total.dtype)
    prediction, target = (
        [each for each in tree_leaves(some) if isinstance(each, Tensor)]
        for some in (returned.prediction, returned.target)
    )
    return [returned.total, count], prediction, target


def _alike(found: Any, wanted: Tensor) -> bool:
    """Up to what an accelerator's sums differ by from one time to the next."""
    if not isinstance(found, Tensor) or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return False
    if not wanted.is_floating_point():
        return torch.equal(found, wanted)
    most = max(1e-5, 4 * torch.finfo(wanted.dtype).eps)
    size = wanted.abs().nan_to_num(0.0, 0.0).max().item() if wanted.numel() else 0.0
    return torch.allclose(found, wanted, rtol=most, atol=most * size, equal_nan=True)


def _auxiliary() -> JobError:
    return JobError(
        "loss",
        "has an auxiliary term, which is divided by another number than the total",
        "leave `pipeline` out of the plan, or add the term to the total",
    )


def _refused(what: str) -> Misconfigured:
    return Misconfigured(what, where="pipeline", fix=_FIX)
