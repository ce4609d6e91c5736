"""A model looked at as a row of blocks, and each stage of a pipeline compared with what the whole model computes.

Every process computes the loss of one microbatch whole, which says in which order the blocks are called and how long
each takes. Then it computes its stages alone, from what their first blocks were given in the whole. What a stage hands
on has to be what the next block was given, the last one's loss the loss; a prediction, a target and the buffers that it
moves have to be what they were. All of that twice in a row: the first block may read what was left behind the last one.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from hasten.data.randomness import undisturbed
from hasten.errors import JobError, Misconfigured
from hasten.facts.loss import Loss
from hasten.parallel.pipeline import Pipeline
from hasten.parallel.replicate import gather_over_ranks
from hasten.techniques._restore import same_state
from hasten.training.build import seed_everything
from hasten.training.losses import calling, checked

if TYPE_CHECKING:
    from hasten.training.run import Run

_SHOWN = 3
_PASSES = 2  # one behind the other
_PICKED_OTHERWISE = 0.01  # of the elements, at most

_IN_ONE_GO = "in which each process takes all of its blocks in one go"
FIX = "leave `pipeline` out of the plan, or let the model call its blocks one behind the other"


class _Pass(NamedTuple):
    """What the whole model has computed of a microbatch. given: to each block, in first. buffers: as they are left.
    times: at which each block began, the last one ended, and all did."""

    given: dict[str, Tensor]
    returned: Loss | Tensor
    buffers: dict[str, Tensor]
    times: list[float]


class Look:
    """At one microbatch of the run, in both modes. The model is left as it was."""

    def __init__(self, run: Run) -> None:
        held: Run = weakref.proxy(run)  # strongly, it would be a circle, which keeps the model until a collector comes
        self._run, self._names = held, list[str]()
        self.call: Callable[[Any], Any] = partial(calling(run.device, run.setup.step.autocast), run.loss, run.model)
        self._batch: Any = run._placed(run.loader.first_batch(), run.built.train)
        self._wholes = dict[bool, list[_Pass]]()  # by whether the model trains
        self.seconds = list[float]()  # of each block, with what follows it up to the next; of what follows the last

    def whole(self, blocks: Sequence[str]) -> list[str]:
        """The blocks in the order of their calls. Raises Misconfigured where they are no row."""
        for training in (True, False):
            self._wholes[training] = self._passes(blocks, training)
        orders = [[*each.given] for passes in self._wholes.values() for each in passes]
        if any(each != orders[0] for each in orders):
            raise refused("the blocks are called in another order from one call to the next, or while it evaluates")
        self._names, times = orders[0], self._wholes[True][-1].times  # the first has warmed up
        self.seconds = [stop - start for start, stop in pairwise(times)]
        return self._names

    def _passes(self, blocks: Sequence[str], training: bool) -> list[_Pass]:
        calls, given = list[str](), dict[str, Tensor]()
        begun, outputs, last = list[float](), dict[str, Any](), 0.0

        def enter(name: str, to: tuple[Any, ...]) -> None:
            calls.append(name)
            if to and isinstance(to[0], Tensor):
                given[name] = to[0].detach().clone()  # a block may write to what it is given
            begun.append(self._now())

        def leave(name: str, gives: Any) -> None:
            nonlocal last
            outputs[name], last = type(gives), self._now()

        passes = list[_Pass]()
        with self._untrained(training), self._watched(blocks, enter, leave) as begin:
            for _ in range(_PASSES):
                begin()
                returned = checked(self._called())
                _check_row(blocks, Counter(calls), given, outputs)
                if isinstance(returned, Loss) and returned.auxiliary is not None:
                    raise auxiliary_refused()
                buffers = {name: each.clone() for name, each in self._run.model.named_buffers()}
                passes.append(_Pass(dict(given), returned, buffers, [*begun, last, self._now()]))
                for each in (calls, given, begun, outputs):
                    each.clear()
        return passes

    def _called(self) -> Any:
        """What the loss returns. Raises Misconfigured where it moves parameters, which every stage would do."""
        before = {name: each._version for name, each in self._run.model.named_parameters()}
        returned = self.call(self._batch)
        held = self._run.model.named_parameters()
        written = [name for name, each in held if before.get(name, each._version) != each._version]
        if written:
            what = f"a call of the loss writes to {', '.join(written[:_SHOWN])}, and every stage calls it"
            raise refused(what, "leave `pipeline` out of the plan, or let it move buffers in place of parameters")
        return returned

    def check_stages(self, pipeline: Pipeline) -> None:
        """Raises Misconfigured, on all ranks, where a stage alone does not compute what it did in the whole."""
        modes = [(stage, training) for stage in pipeline.parts.own for training in (True, False)]
        own = [reason for stage, training in modes if (reason := self._differs(pipeline, stage, training))]
        reasons = gather_over_ranks(own, self._run.grid.all, self._run.device)
        if reasons:
            raise refused(reasons[0], FIX if len(pipeline.parts.own) == 1 else f'{FIX}; "1f1b" may do, {_IN_ONE_GO}')
        self._wholes.clear()
        self._batch = None

    def _differs(self, pipeline: Pipeline, stage: int, training: bool) -> str:
        """Why; empty where it does not."""
        first = self._names[pipeline.parts.spans[stage].start]
        when = "" if training else " while it evaluates"
        try:
            with self._untrained(training), self._watched(self._names, lambda *_: None, lambda *_: None) as begin:
                for number, whole in enumerate(self._wholes[training]):
                    begin()
                    found = pipeline.compute(stage, whole.given[first].clone() if stage else None, self._batch)
                    other = self._other(pipeline, stage, found, whole)
                    if other:
                        again = " in a second call" if number else ""
                        return f"{other} does not follow from what {first} is given{again}{when}"
        except Exception as error:
            told = " ".join(f"{type(error).__name__}: {error}".split())
            return f"stage {stage + 1} cannot be computed alone{when}: {told}"
        return ""

    def _other(self, pipeline: Pipeline, stage: int, found: Any, whole: _Pass) -> str:
        """What this stage makes otherwise than the whole has; empty where there is nothing."""
        stop, moved = pipeline.parts.spans[stage].stop, self._moved_otherwise(pipeline, stage, whole.buffers)
        if stop == len(self._names):
            return _other_in_loss(found, whole.returned) or moved
        return moved if _alike(found, whole.given[self._names[stop]]) else f"what {self._names[stop]} is given"

    def _moved_otherwise(self, pipeline: Pipeline, stage: int, wanted: Mapping[str, Tensor]) -> str:
        """The name of a buffer that this stage moves, and not as the whole has; empty where there is none."""
        names, span = self._names, pipeline.parts.spans[stage]
        blocks = tuple(f"{names[number]}." for number in span)
        for name, each in self._run.model.named_buffers():
            last_moves = span.stop == len(names) and name not in pipeline.owners.buffers
            if (last_moves or name.startswith(blocks)) and not _alike(each, wanted[name]):
                return name
        return ""

    @contextmanager
    def _untrained(self, training: bool) -> Iterator[None]:
        with self.untouched(), _graph_without_tensors() if training else torch.no_grad():
            if not training:
                self._run.model.eval()
            yield

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Inside, the loss may be called: what the model is, holds and trains, and what is drawn next, is put back."""
        run = self._run
        drawn, modules = run.built.generators.states(), [*run.model.modules()]
        kept = [(vars(each), dict(vars(each))) for each in modules]
        kept += [(held, dict(held)) for each in modules for held in (each._parameters, each._buffers, each._modules)]
        trains = [(each, each.requires_grad) for each in run.model.parameters()]
        try:
            with undisturbed(run.device), same_state(run.model):
                yield
        finally:
            run.built.generators.go_on_from(drawn)
            for held, before in kept:
                held.clear()
                held.update(before)
            for parameter, trained in trains:
                parameter.requires_grad_(trained)

    @contextmanager
    def _watched(
        self,
        blocks: Sequence[str],
        enter: Callable[[str, tuple[Any, ...]], None],
        leave: Callable[[str, Any], None],
    ) -> Iterator[Callable[[], None]]:
        """Call these around each block's forward. It draws the same whatever was drawn before, and what follows it the
        same whatever it draws. Gives what is to be called before each call of the loss."""
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

        hooks = list[Any]()
        try:
            for name in blocks:
                block = self._run.model.get_submodule(name)
                hooks.append(block.register_forward_pre_hook(partial(before, name)))
                hooks.append(block.register_forward_hook(partial(after, name)))
            yield begin
        finally:
            for hook in hooks:
                hook.remove()

    def _now(self) -> float:
        if self._run.device.type == "cuda":
            torch.cuda.synchronize(self._run.device)  # queued kernels would be billed to the next block
        return time.perf_counter()


@contextmanager
def _graph_without_tensors() -> Iterator[None]:
    """Gradients are on, for a model may do otherwise without; but nothing is kept for a backward pass: none comes."""

    def refuse(nothing: None) -> Tensor:
        raise refused("the loss differentiates by itself, and stages have the gradients of their own blocks alone")

    with torch.enable_grad(), saved_tensors_hooks(lambda tensor: None, refuse):
        yield


def _check_row(blocks: Sequence[str], calls: Counter[str], given: dict[str, Tensor], outputs: dict[str, type]) -> None:
    for name in blocks:
        if calls[name] != 1:
            raise refused(f"{name} is called {calls[name]} times in a forward pass")
        if name not in given or not given[name].is_floating_point():
            raise refused(f"{name} is not called with a tensor of floating-point numbers in first")
        if not issubclass(outputs[name], Tensor):
            raise refused(f"{name} returns {outputs[name].__name__}, and not one tensor")


def _other_in_loss(found: Loss | Tensor, wanted: Loss | Tensor) -> str:
    """What of a loss is another one; empty where nothing is."""
    for what, *pair in zip(("the loss", "its prediction", "its target"), _values(found), _values(wanted), strict=True):
        here, there = pair
        if len(here) != len(there) or not all(map(_alike, here, there)):
            return what
    return ""


def _values(returned: Loss | Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Of each in shares, this rank's."""
    if isinstance(returned, Tensor):
        return [returned.detach()], [], []
    count = torch.as_tensor(returned.count, device=returned.total.device).to(returned.total.dtype)
    prediction, target = (
        [_own(each.detach()) for each in tree_leaves(some) if isinstance(each, Tensor)]
        for some in (returned.prediction, returned.target)
    )
    return [returned.total.detach(), count], prediction, target


def _own(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _alike(found: Any, wanted: Tensor) -> bool:
    """Up to what an accelerator's sums differ by from one time to the next: whole numbers may have been picked by two
    that are nearly the same."""
    if not isinstance(found, Tensor) or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return False
    if wanted.is_complex():
        return _alike(torch.view_as_real(found), torch.view_as_real(wanted))
    if not wanted.is_floating_point():
        return bool((found != wanted).sum() <= _PICKED_OTHERWISE * wanted.numel())
    most = max(1e-5, 4 * torch.finfo(wanted.dtype).eps)
    found, wanted = (each.float() if each.element_size() == 1 else each for each in (found, wanted))
    size = wanted.abs().nan_to_num(0.0, 0.0).max().item() if wanted.numel() else 0.0
    return torch.allclose(found, wanted, rtol=most, atol=most * size, equal_nan=True)


def auxiliary_refused() -> JobError:
    return JobError(
        "loss",
        "has an auxiliary term, which is divided by another number than the total",
        "leave `pipeline` out of the plan, or add the term to the total",
    )


def refused(what: str, fix: str = FIX) -> Misconfigured:
    return Misconfigured(what, where="pipeline", fix=fix)
