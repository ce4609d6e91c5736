"""One microbatch of a run, computed whole and by each stage of a pipeline alone: what is compared, and what is told.

The whole says in which order the blocks are called and how long each takes. A stage then begins with what its first
block was given in the whole: what it hands on has to be what the next block was given, and the last one's loss the
loss, in training as in evaluation.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from hasten.data.randomness import undisturbed
from hasten.errors import JobError, Misconfigured
from hasten.facts.loss import Loss
from hasten.parallel.pipeline import Parts, Pipeline
from hasten.parallel.reached import reached
from hasten.parallel.replicate import gather_over_ranks
from hasten.techniques._restore import same_state
from hasten.training.build import seed_everything
from hasten.training.losses import calling, checked

if TYPE_CHECKING:
    from hasten.training.run import Run

FIX = "leave `pipeline` out of the plan, or let the model call its blocks one behind the other"


class _Whole(NamedTuple):
    """What the whole model has computed of a microbatch, in one mode. given: to each block, in first."""

    given: dict[str, Tensor]
    returned: Loss | Tensor


class StageLook:
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
            raise refused("the blocks are called in another order while it evaluates")
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
        _check_row(blocks, Counter(calls), given, outputs)
        if isinstance(returned, Loss) and returned.auxiliary is not None:
            raise no_auxiliary()
        self._wholes[training] = _Whole(given, returned)
        return calls

    def reached(self, parts: Parts) -> list[tuple[str, int]]:
        """The trained parameters that what this rank's stages compute is differentiated by, each with the rank."""
        trained = {name: each for name, each in self._run.model.named_parameters() if each.requires_grad}
        found = set[str]()
        for stage in parts.own:

            def through(given: Tensor | None, span: range = parts.spans[stage]) -> Any:
                return parts.passing.through(span, given, lambda: self.call(self._batch))

            # Where it cannot be computed alone it reaches nothing here, and reasons() tells that.
            computed, _ = self._computed(parts, stage, through, training=True)
            found |= reached([computed.total if isinstance(computed, Loss) else computed], trained)
        return [(name, parts.ranks.rank) for name in sorted(found)]

    def reasons(self, pipeline: Pipeline) -> list[str]:
        """Why stages alone do not compute what they did in the whole, on all ranks: none where they do."""
        modes = [(stage, training) for stage in pipeline.parts.own for training in (True, False)]
        own = [reason for stage, training in modes if (reason := self._differs(pipeline, stage, training))]
        return gather_over_ranks(own, self._run.grid.all, self._run.device)

    def forget(self) -> None:
        """The microbatch, and what was computed of it."""
        self._wholes.clear()
        self._batch = None

    def _computed(
        self, parts: Parts, stage: int, through: Callable[[Tensor | None], Any], *, training: bool
    ) -> tuple[Any, str]:
        """What a stage alone computes of what its first block is given in the whole; or why it cannot."""
        first = self._names[parts.spans[stage].start]
        given = self._wholes[training].given[first].clone() if stage else None
        try:
            with self.untouched(), self._watched(self._names, lambda *_: None, lambda *_: None):
                self._begin(training)
                return through(given), ""
        except Exception as error:
            told = " ".join(f"{type(error).__name__}: {error}".split())
            return None, f"stage {stage + 1} cannot be computed alone{_when(training)}: {told}"

    def _differs(self, pipeline: Pipeline, stage: int, training: bool) -> str:
        """Why; empty where it does not."""
        names, span, whole = self._names, pipeline.parts.spans[stage], self._wholes[training]
        with torch.no_grad():
            found, reason = self._computed(
                pipeline.parts, stage, lambda given: pipeline.compute(stage, given, self._batch), training=training
            )
        if reason:
            return reason
        if span.stop < len(names):
            wanted, what = whole.given[names[span.stop]], f"what {names[span.stop]} is given"
            follows = _alike(found, wanted)
        else:
            what = "the loss"
            follows = all(_alike(*pair) for pair in zip(_numbers(found), _numbers(whole.returned), strict=True))
        return "" if follows else f"{what} does not follow from what {names[span.start]} is given{_when(training)}"

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


def _check_row(blocks: Sequence[str], calls: Counter[str], given: dict[str, Tensor], outputs: dict[str, type]) -> None:
    for name in blocks:
        if calls[name] != 1:
            raise refused(f"{name} is called {calls[name]} times in a forward pass")
        if name not in given or not given[name].is_floating_point():
            raise refused(f"{name} is not called with a tensor of floating-point numbers in first")
        if not issubclass(outputs[name], Tensor):
            raise refused(f"{name} returns {outputs[name].__name__}, and not one tensor")


def _when(training: bool) -> str:
    return "" if training else " while it evaluates"


def _numbers(returned: Loss | Tensor) -> list[Tensor]:
    if isinstance(returned, Tensor):
        return [returned]
    return [returned.total, torch.as_tensor(returned.count, device=returned.total.device).to(returned.total.dtype)]


def _alike(found: Any, wanted: Tensor) -> bool:
    """Up to what an accelerator's sums differ by from one time to the next."""
    if not isinstance(found, Tensor) or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return False
    most = max(1e-5, 4 * torch.finfo(wanted.dtype).eps)
    size = wanted.abs().nan_to_num(0.0, 0.0).max().item() if wanted.numel() else 0.0
    return torch.allclose(found, wanted, rtol=most, atol=most * size, equal_nan=True)


def no_auxiliary() -> JobError:
    return JobError(
        "loss",
        "has an auxiliary term, which is divided by another number than the total",
        "leave `pipeline` out of the plan, or add the term to the total",
    )


def refused(what: str) -> Misconfigured:
    return Misconfigured(what, where="pipeline", fix=FIX)
