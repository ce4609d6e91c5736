"""Looks at a running script once: what it loads, trains, and updates, and where in its code.

Nothing is timed here: the process ends with what was seen, and trials are processes of their own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, Subset

from hasten.errors import Misconfigured
from hasten.facts.scripts.seen import Length, Seen, SeenLoader, SeenModel, SeenOptimizer, Stack
from hasten.scripts.observing.calls import library_between, users_calls, users_frames
from hasten.scripts.observing.loops import length_of, turn_of
from hasten.scripts.observing.named_modules import (
    NamedModules,
    is_any_trained,
    trained_module,
    trained_parameters,
    wrapper_in,
)
from hasten.scripts.observing.passes import Forward, Passes, Step
from hasten.scripts.observing.trainer_objects import TrainerObjects
from hasten.scripts.patching import replaced
from hasten.users_code import is_users_file


@dataclass(kw_only=True, slots=True)
class _Loader:
    number: int
    loader: DataLoader[Any]
    made: Stack
    made_by: str
    batches: int = 0  # delivered since training began


@dataclass(kw_only=True, slots=True)
class _Optimizer:
    number: int
    optimizer: Optimizer
    made: Stack
    made_by: str
    named: list[NamedModules]
    stepped: Stack = ()
    updates: int = 0
    skipped: int = 0  # by a GradScaler
    step: Step | None = None  # the last one
    passes: int = 0  # backward passes of the script until its first one
    first_turn: int | None = None  # of the loop around its first update
    until_first: int = 0  # batches of one loader until then
    skipped_first: int = 0  # steps until then


@dataclass(kw_only=True)
class Observer:
    """enough: called after every update of an optimizer with the number of those of the main one."""

    enough: Callable[[int], None]
    loaders: list[_Loader] = field(default_factory=list[_Loader])
    optimizers: list[_Optimizer] = field(default_factory=list[_Optimizer])
    trainers: TrainerObjects = field(default_factory=TrainerObjects)
    passes: Passes = field(default_factory=Passes)
    _frames: Length | None = None
    _began: float = field(default_factory=time.perf_counter)
    _resources: ExitStack = field(default_factory=ExitStack)
    _known: WeakSet[Any] = field(default_factory=WeakSet[Any])
    _wrappers: WeakKeyDictionary[nn.Module, list[NamedModules]] = field(
        default_factory=WeakKeyDictionary[nn.Module, list[NamedModules]]
    )

    def start(self) -> None:
        enter = self._resources.enter_context
        self.trainers.start(self._resources)
        enter(replaced(DataLoader, "__init__", self._loader_made))
        enter(replaced(DataLoader, "__iter__", self._loader_iterated))
        enter(replaced(Optimizer, "__init__", self._optimizer_made))
        enter(replaced(DistributedDataParallel, "__init__", self._wrapper_made))
        enter(replaced(torch.amp.GradScaler, "step", self._scaled_step))
        self.passes.start(self._resources)
        self._resources.callback(register_optimizer_step_post_hook(self._updated).remove)

    # ── what the script makes ───────────────────────────────────────────────────────────────────────────────────────

    def _loader_made(self, original: Callable[..., None], loader: DataLoader[Any], *args: Any, **named: Any) -> None:
        original(loader, *args, **named)
        if loader not in self._known:
            self._known.add(loader)
            number, made = len(self.loaders), users_calls()
            self.loaders.append(_Loader(number=number, loader=loader, made=made, made_by=library_between(loader)))

    def _loader_iterated(self, original: Callable[..., Any], loader: DataLoader[Any]) -> Iterator[Any]:
        found = next((each for each in self.loaders if each.loader is loader), None)
        return _Counted(original(loader), partial(self._batch_delivered, found))

    def _batch_delivered(self, loader: _Loader | None) -> None:
        """Of those before the training's first forward, such as of a first evaluation, only the last one counts."""
        if loader is None or not torch.is_grad_enabled():
            return
        if not self.passes.have_begun:
            for each in self.loaders:
                each.batches = 0
        loader.batches += 1

    def _optimizer_made(self, original: Callable[..., None], made: Optimizer, *args: Any, **named: Any) -> None:
        original(made, *args, **named)
        if made not in self._known:
            self._known.add(made)
            number, calls, by = len(self.optimizers), users_calls(), library_between(made)
            modules = [NamedModules.of(frame) for frame in users_frames()]
            self.optimizers.append(_Optimizer(number=number, optimizer=made, made=calls, made_by=by, named=modules))

    def _wrapper_made(self, original: Callable[..., None], made: nn.Module, *args: Any, **named: Any) -> None:
        self._wrappers[made] = [NamedModules.of(frame) for frame in users_frames()]
        original(made, *args, **named)

    # ── a step ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _scaled_step(
        self, original: Callable[..., Any], scaler: Any, optimizer: Optimizer, *args: Any, **named: Any
    ) -> Any:
        """A step that overflows is no update."""
        found = self._known_optimizer(optimizer)
        before = found.updates if found else 0
        result = original(scaler, optimizer, *args, **named)
        if found and found.updates == before:
            found.skipped += 1
        return result

    def _known_optimizer(self, optimizer: Optimizer) -> _Optimizer | None:
        return next((each for each in self.optimizers if each.optimizer is optimizer), None)

    def _updated(self, optimizer: Optimizer, args: Any, named: Any) -> None:
        found = self._known_optimizer(optimizer)
        if found is None:
            return
        found.updates, found.stepped = found.updates + 1, users_calls()
        found.step = self.passes.step_of(optimizer, found.passes)
        if found.updates == 1:
            found.passes = self.passes.count
            found.first_turn, found.skipped_first = turn_of(users_frames()), found.skipped
            found.until_first = max((each.batches for each in self.loaders), default=0)
        main = self._main()
        if found is main:
            if found.updates == 2:
                self._frames = self._length()
            self.enough(found.updates)

    def _main(self) -> _Optimizer:
        return next(each for each in self.optimizers if each.updates)

    # ── what was seen ───────────────────────────────────────────────────────────────────────────────────────────────

    def seen(self) -> Seen:
        """Raises Misconfigured where the script has shown no training that can be followed."""
        if not any(each.updates for each in self.optimizers):
            raise Misconfigured("trains nothing: no optimizer of torch made a step", fix=_WHAT_IS_FOLLOWED)
        main = self._main()
        if main.step is None:
            if self.passes.without_modules and not is_any_trained(main.named, main.optimizer):
                raise Misconfigured("trains tensors that are parameters of no named module", fix=_TRAIN_A_MODULE)
            if self.passes.without_modules:
                raise Misconfigured("trains without a call of a module: no step can be followed", fix=_CALL_THE_MODEL)
            raise Misconfigured("trains without backward(): no step can be followed", fix=_WHAT_IS_FOLLOWED)
        if self._frames is None:
            raise Misconfigured("ended after one optimizer step, so no steps can be timed", fix=_TRAIN_LONGER)
        return Seen(
            loader=self._trained_on(),
            model=self._trained(main.step.forward, main.named),
            optimizers=tuple(
                SeenOptimizer(
                    number=each.number,
                    kind=type(each.optimizer).__name__,
                    made=each.made,
                    made_by=each.made_by,
                    stepped=each.stepped,
                    implementation=_implementation(each.optimizer),
                )
                for each in self.optimizers
                if each.updates
            ),
            main=main.number,
            backward=tuple(call for _, call in main.step.backward),
            windows=main.step.windows,
            autocast=self.passes.autocast,
            length=self._frames,
            updates=main.updates,
            seconds=time.perf_counter() - self._began,
            trainer=self.trainers.seen(),
        )

    def _trained(self, forward: Forward, functions: Sequence[NamedModules]) -> SeenModel:
        """functions: that are running where its optimizer is made."""
        module, names, named = trained_module(functions, forward.module)
        unwrapped, wrapping = (), ()
        if (wrapper := wrapper_in(module)) is not None:
            _, unwrapped, wrapping = trained_module(self._wrappers.get(wrapper, ()), wrapper.module)
        return SeenModel(
            kind=type(module).__name__,
            parameters=sum(each.numel() for each in module.parameters()),
            trained=trained_parameters(module),
            device=next((each.device.type for each in module.parameters()), "cpu"),
            names=names,
            named=named,
            images=forward.images,
            inputs=forward.inputs,
            called=tuple(call for _, call in forward.calls),
            is_wrapped=wrapper is not None,
            unwrapped=unwrapped,
            wrapping=wrapping,
        )

    def _length(self) -> Length:
        if (of_trainer := self.trainers.length()) is not None:
            return of_trainer
        read, main = max(self.loaders, key=lambda each: each.batches, default=None), self._main()
        if read is None or not read.batches:
            return length_of(users_frames(), None, 0.0, main.first_turn)
        steps = main.updates - 1 + main.skipped - main.skipped_first  # `step % 4 == 0` updates in the first one too
        per_update = (read.batches - main.until_first) / steps
        first_turn = main.first_turn if steps == 1 else None
        return length_of(users_frames(), _batches_of(read.loader), per_update, first_turn)

    def _trained_on(self) -> SeenLoader | None:
        found = max(self.loaders, key=lambda each: each.batches, default=None)
        if found is None or not found.batches:
            return None
        loader, source = found.loader, self._given_by_script(found)
        return SeenLoader(
            number=found.number,
            kind=type(loader).__name__,
            dataset=type(loader.dataset).__name__,
            dataset_file=_file_of_dataset(loader.dataset),
            made=source.made,
            made_by=source.made_by,
            rebuilt_by="" if source is found else found.made_by,
            batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
            batches=_batches_of(loader),
            workers=loader.num_workers,
        )

    def _given_by_script(self, found: _Loader) -> _Loader:
        """A library can make a loader with the settings of one that the script gives it."""
        given = (each for each in self.loaders if not each.made_by and each.loader.dataset is found.loader.dataset)
        return next(given, found) if found.made_by else found


_WHAT_IS_FOLLOWED = "hasten follows scripts that call backward() on a loss, and step() of a torch.optim optimizer"
_TRAIN_A_MODULE = "hasten follows scripts whose optimizer has parameters of an nn.Module, which is called in every step"
_TRAIN_LONGER = "give the script options, or data, with which it takes many steps"
_CALL_THE_MODEL = "call the model itself, as in model(images): model.forward(images) calls none of torch's hooks"


class _Counted(Iterator[Any]):
    """The loader's own iterator, whose batches are counted."""

    def __init__(self, batches: Iterator[Any], delivered: Callable[[], None]) -> None:
        self._batches, self._delivered = batches, delivered

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._delivered()
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # pyright: ignore[reportArgumentType]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _implementation(optimizer: Optimizer) -> str:
    defaults = optimizer.defaults
    for name in ("fused", "foreach"):
        if defaults.get(name):
            return name
    return "" if defaults.get("foreach", False) is None else "for_loop"


def _file_of_dataset(dataset: Any) -> str:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    file = getattr(sys.modules.get(type(dataset).__module__), "__file__", None) or ""
    return file if file and is_users_file(file) else ""


def _batches_of(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:  # of an iterable data set without a length
        return None
