"""A model looked at as a row of blocks: every process computes the loss of one microbatch whole, before it is cut.

That says in which order the blocks are called and how long each takes; what each is given, what the loss returns and
what is moved, against which stages are compared when they compute alone (stage_alone.py); and whether gradients go all
the way. It is done twice in a row: the first block may read what was left behind the last one.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map_only

from hasten.data.order.randomness import seed_everything, undisturbed
from hasten.errors import JobError, Misconfigured
from hasten.facts.job import Loss
from hasten.parallel.python_state import Moved, PythonState, Read
from hasten.techniques.common.restored_state import same_state
from hasten.training.gradient_paths import nodes_behind
from hasten.training.step_parts.losses import calling, checked

if TYPE_CHECKING:
    from hasten.training.run import Run

_SHOWN = 3
_PASSES = 2  # one behind the other
_NO_HOOKS = "saved tensor hooks"  # torch.func's words: it does not go together with them

FIX = "leave `pipeline` out of the plan, or let the model call its blocks one behind the other"


class WholePass(NamedTuple):
    """What the whole model has computed of a microbatch. given: to each block, in first. cut_off: blocks, where no
    gradient of the loss reaches what they are given, though it could have one. buffers, python: as they are left.
    times: at which each block began, the last one ended, and all did."""

    given: dict[str, Tensor]
    cut_off: frozenset[str]
    returned: Loss | Tensor
    buffers: dict[str, Tensor]
    python: Read
    times: list[float]


class Look:
    """At one microbatch of the run, in both modes. The model and its loss are left as they were.

    names: of the blocks, as they are called. passes: by whether the model trains. moving: what the model and the loss
    keep in Python and move in a call; counted: in each of them, or once where it is a float, which the same batch
    leaves as it is; switches: what is another where a block is called, and put back at the end. seconds: of each block,
    with what follows it up to the next; of what follows the last.
    """

    def __init__(self, run: Run) -> None:
        held: Run = weakref.proxy(run)  # strongly, it would be a circle, which keeps the model until a collector comes
        self.run, self.names = held, list[str]()
        self.call: Callable[[Any], Any] = partial(calling(run.device, run.setup.step.autocast), run.loss, run.model)
        self.python = PythonState(run.model, run.job.loss)
        self.moving, self.counted, self.switches = set[Moved](), set[Moved](), set[Moved]()
        self.batch: Any = run._placed(run.loader.first_batch(), run.built.train)
        self.passes = dict[bool, list[WholePass]]()
        self.seconds = list[float]()

    def whole(self, blocks: Sequence[str]) -> list[str]:
        """The blocks in the order of their calls. Raises Misconfigured where they are no row."""
        if held := self.python.iterators:
            what = f"an iterator is held as {', '.join(held[:_SHOWN])}, and each call to look would go on in it"
            fix = "leave `pipeline` out of the plan, or hold a torch.Generator, a list or a count in an attribute"
            raise refused(what, fix)
        for training in (True, False):
            self.passes[training] = self._passes_in(blocks, training)
        orders = [[*each.given] for passes in self.passes.values() for each in passes]
        if any(each != orders[0] for each in orders):
            raise refused("the blocks are called in another order from one call to the next, or while it evaluates")
        self.names, times = orders[0], self.passes[True][-1].times  # the first has warmed up
        self.seconds = [stop - start for start, stop in pairwise(times)]
        return self.names

    def forget(self) -> None:
        self.passes.clear()
        self.batch = None

    def _passes_in(self, blocks: Sequence[str], training: bool) -> list[WholePass]:
        if not training:
            return self._passes(blocks, training, None)
        try:
            return self._passes(blocks, training, _Dropped())
        except RuntimeError as error:
            if _NO_HOOKS not in str(error):
                raise
        return self._passes(blocks, training, None)

    def _passes(self, blocks: Sequence[str], training: bool, dropped: _Dropped | None) -> list[WholePass]:
        """dropped: what is kept for a backward pass; None: all of it stays."""
        calls, given, nodes = list[str](), dict[str, Tensor](), dict[str, Any]()
        begun, outputs, last = list[float](), dict[str, Any](), 0.0
        before, at_blocks = self.python.read(), set[Moved]()

        def enter(name: str, to: tuple[Any, ...]) -> None:
            calls.append(name)
            if to and isinstance(to[0], Tensor):
                given[name] = to[0].detach().clone()  # a block may write to what it is given
                nodes[name] = to[0].grad_fn
            if dropped is not None:
                dropped.begin_block()
            at_blocks.update(self.python.moved(before))
            begun.append(self._now())

        def leave(name: str, gives: Any) -> None:
            nonlocal last
            outputs[name], last = type(gives), self._now()
            if dropped is not None:
                dropped.end_block()

        passes = list[WholePass]()
        with self.untrained(training), dropped or nullcontext(), self.watched(blocks, enter, leave) as begin:
            for _ in range(_PASSES):
                begin()
                before = self.python.read()
                returned = checked(self._called())
                moved = self.python.moved(before)
                self.moving |= moved
                self.switches |= at_blocks - moved
                check_row(blocks, Counter(calls), given, outputs)
                if isinstance(returned, Loss) and returned.auxiliary is not None:
                    raise auxiliary_refused()
                buffers = {name: each.clone() for name, each in self.run.model.named_buffers()}
                cut_off, now, times = _cut_off(returned, nodes), self.python.read(), [*begun, last, self._now()]
                again = len(passes) == _PASSES - 1
                self.counted |= {each for each in moved if again or self.python.holds_float(each, now)}
                passes.append(WholePass(dict(given), cut_off, _detached(returned), buffers, now, times))
                for each in (calls, given, nodes, begun, outputs, at_blocks):
                    each.clear()
        return passes

    def _called(self) -> Any:
        """What the loss returns. Raises Misconfigured where it moves parameters, which every stage would do."""
        before = {name: each._version for name, each in self.run.model.named_parameters()}
        returned = self.call(self.batch)
        held = self.run.model.named_parameters()
        written = [name for name, each in held if before.get(name, each._version) != each._version]
        if written:
            what = f"a call of the loss writes to {', '.join(written[:_SHOWN])}, and every stage calls it"
            fix = "leave `pipeline` out of the plan, or let it move buffers in place of parameters"
            raise refused(what, f"{fix}; an Embedding with max_norm writes to its weight")
        return returned

    @contextmanager
    def alone(self, training: bool) -> Iterator[Callable[[], None]]:
        """Inside, a stage may be computed as the whole has been. Gives what is to be called before."""
        with self.untrained(training), self.watched(self.names, lambda *_: None, lambda *_: None) as begin:
            yield begin

    @contextmanager
    def untrained(self, training: bool) -> Iterator[None]:
        with self.untouched(), torch.set_grad_enabled(training):
            if not training:
                self.run.model.eval()
            yield

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Inside, the loss may be called: what the model is, holds and trains, what Python keeps, and what is drawn
        next, is put back."""
        with self.python.as_it_was(), self._same_model():
            yield

    @contextmanager
    def _same_model(self) -> Iterator[None]:
        run = self.run
        drawn, modules = run.built.declared.generator_states(), [*run.model.modules()]
        kept = [(vars(each), dict(vars(each))) for each in modules]
        holders = (held for each in modules for held in (each._parameters, each._buffers, each._modules))
        kept += [(held, dict(held)) for held in holders if isinstance(held, dict)]  # a scripted layer has others
        trains = [(each, each.requires_grad) for each in run.model.parameters()]
        try:
            with undisturbed(run.device), same_state(run.model):
                yield
        finally:
            run.built.declared.set_generator_states(drawn)
            for held, before in kept:
                held.clear()
                held.update(before)
            for parameter, trained in trains:
                parameter.requires_grad_(trained)

    @contextmanager
    def watched(
        self,
        blocks: Sequence[str],
        enter: Callable[[str, tuple[Any, ...]], None],
        leave: Callable[[str, Any], None],
    ) -> Iterator[Callable[[], None]]:
        """Call these around each block's forward. It draws the same whatever was drawn before, and what follows it the
        same whatever it draws. Gives what is to be called before each call of the loss."""
        declared = self.run.built.declared
        drawn = declared.generator_states()

        def begin() -> None:
            seed_everything(0)
            declared.set_generator_states(drawn)

        def before(name: str, block: nn.Module, given: Any) -> None:
            begin()
            enter(name, given)

        def after(name: str, block: nn.Module, given: Any, gives: Any) -> None:
            leave(name, gives)
            begin()

        hooks = list[Any]()
        try:
            for name in blocks:
                block = self.run.model.get_submodule(name)
                hooks.append(block.register_forward_pre_hook(partial(before, name)))
                hooks.append(block.register_forward_hook(partial(after, name)))
            yield begin
        finally:
            for hook in hooks:
                hook.remove()

    def _now(self) -> float:
        if self.run.device.type == "cuda":
            torch.cuda.synchronize(self.run.device)  # queued kernels would be billed to the next block
        return time.perf_counter()


class _Dropped:
    """Inside, nothing is kept for a backward pass of the whole, as none comes: the tensors of a block go with its end,
    for it may differentiate by itself within."""

    def __init__(self) -> None:
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)
        self._of_block: list[list[Tensor]] | None = None

    def __enter__(self) -> None:
        self._hooks.__enter__()

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def begin_block(self) -> None:
        self._of_block = []

    def end_block(self) -> None:
        for each in self._of_block or ():
            each.clear()
        self._of_block = None

    def _pack(self, tensor: Tensor) -> list[Tensor]:
        if self._of_block is None:
            return []
        self._of_block.append([tensor])
        return self._of_block[-1]

    def _unpack(self, held: list[Tensor]) -> Tensor:
        if not held:
            raise refused("the loss differentiates by itself, and stages have the gradients of their own blocks alone")
        return held[0]


def _cut_off(returned: Loss | Tensor, nodes: Mapping[str, Any]) -> frozenset[str]:
    total = returned.total if isinstance(returned, Loss) else returned
    reached = nodes_behind(total)
    return frozenset(name for name, node in nodes.items() if node is not None and node not in reached)


def _detached(returned: Loss | Tensor) -> Loss | Tensor:
    """Without the graph, which would be kept with it."""
    if isinstance(returned, Tensor):
        return returned.detach()
    prediction, target = (tree_map_only(Tensor, Tensor.detach, some) for some in (returned.prediction, returned.target))
    return replace(returned, total=returned.total.detach(), prediction=prediction, target=target)


def check_row(blocks: Sequence[str], calls: Counter[str], given: dict[str, Tensor], outputs: dict[str, type]) -> None:
    for name in blocks:
        if calls[name] != 1:
            raise refused(f"{name} is called {calls[name]} times in a forward pass")
        if name not in given or not given[name].is_floating_point():
            raise refused(f"{name} is not called with a tensor of floating-point numbers in first")
        if not issubclass(outputs[name], Tensor):
            raise refused(f"{name} returns {outputs[name].__name__}, and not one tensor")


def auxiliary_refused() -> JobError:
    return JobError(
        "loss",
        "has an auxiliary term, which is divided by another number than the total",
        "leave `pipeline` out of the plan, or add the term to the total",
    )


def refused(what: str, fix: str = FIX) -> Misconfigured:
    return Misconfigured(what, where="pipeline", fix=fix)
