"""Times the optimizer steps of a running script, and hands control over between two of them.

An interval lies between two updates of the main optimizer. One in which a loader began, the model was evaluated or a
file was saved is timed by itself and counts in no window, because a window would contain one or not, by chance: a turn
between two epochs, where the loader of the steps begins again and none is read on, and else an interruption. The
seconds of both are those beyond a usual interval. What a script does in every interval, as one that evaluates after
each step, is neither.

The script is never ended by an exception, which its own code could catch: control is handed to a function that returns
when the script is to continue.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from hasten.facts.scripts.seen import Seen, Stack
from hasten.scripts.observing.calls import users_calls
from hasten.scripts.observing.loss_value import loss_value
from hasten.scripts.observing.main_optimizer import MainOptimizer
from hasten.scripts.observing.named_modules import all_frames, module_in
from hasten.scripts.observing.trainer_objects import TrainerObjects
from hasten.scripts.patching import replaced

UNTIMED_STEPS = 2  # after the script was started again


@dataclass(slots=True)
class Parts:
    """Seconds of the parts of intervals. They do not overlap: the backward of an optimizer's closure is no update."""

    data_wait: float = 0.0
    to_backward: float = 0.0  # from the batch, or from the last of the parts below, to the beginning of backward
    backward: float = 0.0
    optimizer: float = 0.0

    @property
    def computing(self) -> float:
        return self.to_backward + self.backward + self.optimizer

    def add(self, other: Parts) -> None:
        self.data_wait += other.data_wait
        self.to_backward += other.to_backward
        self.backward += other.backward
        self.optimizer += other.optimizer


@dataclass(kw_only=True)
class StepClock:
    """seen: of the observed script. at_update: called after each update of the main optimizer, outside of all times.
    began: by time.perf_counter(), when the script was started. filling_steps: so many after each start fill a cache,
    and are no intervals."""

    seen: Seen
    at_update: Callable[[], None]
    filling_steps: int = 0
    filling: list[float] = field(default_factory=list[float])  # seconds of those steps, since the start
    began: float = field(default_factory=time.perf_counter)
    intervals: list[float] = field(default_factory=list[float])  # seconds, without turns
    turns: list[float] = field(default_factory=list[float])  # whole intervals
    interruptions: list[float] = field(default_factory=list[float])  # whole intervals
    losses: list[float | Tensor] = field(default_factory=list[float | Tensor])  # of every backward
    start_seconds: float = 0.0  # to the first update
    first_step_seconds: float = 0.0  # of that update's step, from its batch on
    is_first: bool = True  # nobody has asked for the first step yet
    batches: int = 0  # that were read
    parts: Parts = field(default_factory=Parts)  # of those intervals
    settles: bool = False  # an accelerator finishes each part before the next one begins
    trainers: TrainerObjects = field(default_factory=TrainerObjects)
    _ends_epoch: bool = False
    _is_handed_over: bool = False  # control, to at_update
    _step: Parts = field(default_factory=Parts)  # since the last update of the main optimizer
    _last: float = 0.0
    _part_began: float = 0.0
    _turned: bool = True
    _had_turned: bool = False  # in the interval before
    _made: int = 0  # loaders
    main: MainOptimizer = field(init=False)
    module: nn.Module | None = None  # that is trained, by its name where the optimizer is made
    at_optimizer: Callable[[], None] = lambda: None
    _counted: float = 0.0  # seconds that are in a part or outside of all times, since the start
    _update: tuple[float, float] = 0.0, 0.0  # when it began, and what was counted then
    _loaders: WeakKeyDictionary[Any, Stack] = field(default_factory=WeakKeyDictionary[Any, Stack])  # where it was made
    trained_on: Any = None  # the loader that the steps of the observed script read
    _read_on: ReferenceType[_Timed] | None = None  # since the last update: the iterator of a loader that is older
    _read_new: ReferenceType[_Timed] | None = None  # since then: the last new one
    _stepped_on: ReferenceType[_Timed] | None = None  # that of the last step
    _resources: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        enter = self._resources.enter_context
        self.trainers.start(self._resources)
        enter(replaced(DataLoader, "__init__", self._loader_made))
        enter(replaced(DataLoader, "__iter__", self._loader_iterated))
        enter(replaced(Optimizer, "__init__", self._optimizer_made))
        enter(replaced(torch.autograd, "backward", self._backward))
        enter(replaced(torch.amp.GradScaler, "step", self._scaled_step))
        enter(replaced(torch, "save", self._interrupts))
        enter(replaced(nn.Module, "eval", self._interrupts))
        self._resources.callback(register_optimizer_step_pre_hook(self._begins).remove)
        self._resources.callback(register_optimizer_step_post_hook(self._ends).remove)

    def begin(self) -> None:
        """The script starts now, for the first time or again."""
        self.began, self._made, self._turned, self._had_turned = time.perf_counter(), 0, True, False
        self.main, self.trained_on = MainOptimizer(number=self.seen.main), None
        self._read_on = self._read_new = self._stepped_on = None
        self.filling = []
        self._part_began, self._step = self.began, Parts()

    def end(self) -> None:
        """The script has ended: since its last update it did what it does between two epochs, without the step that
        follows there."""
        if self.main.updates:
            self.drain()
            self.turns.append(self.since_last + self.usual)

    def end_epoch(self) -> None:
        """The loader that the last step has read ends at its next batch, once."""
        self._ends_epoch = True
        self.trainers.epoch_ends_early()

    @property
    def has_second_epoch(self) -> bool:
        return self.seen.loader is not None and (self.seen.length.epochs or 1) > 1

    def epoch_ends(self, batches: _Timed) -> bool:
        """Whether they are to end now."""
        if not self._ends_epoch or self._stepped_on is None or self._stepped_on() is not batches:
            return False
        self._ends_epoch = False
        self.trainers.epoch_ended()
        return True

    @property
    def since_last(self) -> float:
        """Seconds since the last update or the last resume()."""
        return time.perf_counter() - self._last

    @property
    def made_alike(self) -> tuple[Any, ...]:
        """Other loaders that were made by the call which has made the one that is trained on."""
        if self.trained_on is None:
            return ()
        call = self._loaders.get(self.trained_on, ())[:1]
        return tuple(each for each, made in self._loaders.items() if made[:1] == call and each is not self.trained_on)

    @property
    def usual(self) -> float:
        """Seconds of an interval; 0 before there was one. Ahead of a device, only their sum is true."""
        usual = fmean if self.runs_ahead else median
        return usual(self.intervals) if self.intervals else 0.0

    def forget_intervals(self) -> None:
        for each in (self.intervals, self.turns, self.interruptions):
            each.clear()

    @property
    def runs_ahead(self) -> bool:
        """Whether a step may end before the device has done its work."""
        return self.seen.model.device == "cuda"

    def settle(self) -> None:
        """Wait for the device."""
        if self.runs_ahead and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def drain(self) -> None:
        """Wait for the device. These seconds belong to the steps so far, and so to the last of them."""
        began = time.perf_counter()
        self.settle()
        if self.runs_ahead and self.intervals:
            waited = time.perf_counter() - began
            self.intervals[-1] += waited
            self._last += waited

    def resume(self) -> None:
        """Time runs from now on."""
        before, self._last = self._last, time.perf_counter()
        self._part_began = self._last
        self._counted += self._last - before

    def new_losses(self) -> list[float]:
        """Since the last call, of every backward."""
        self.drain()  # as reading them does, whose seconds would be no step's
        found, self.losses = self.losses, []
        return [float(each) for each in found]

    def new_loss(self) -> float:
        """The mean of these; NaN where there was none."""
        losses = self.new_losses()
        return math.fsum(losses) / len(losses) if losses else math.nan

    # ── what is watched for ─────────────────────────────────────────────────────────────────────────────────────────

    def _optimizer_made(self, original: Callable[..., None], made: Optimizer, *args: Any, **named: Any) -> None:
        original(made, *args, **named)
        if self._is_handed_over:
            return  # it is not the script's
        self._part_began = time.perf_counter()  # what comes before belongs to the script's start
        if self.main.is_made(made):
            self.module = module_in(all_frames(), self.seen.model, made)
            if self.main.updates:
                self._turns()
            else:
                self.at_optimizer()

    def _loader_made(self, original: Callable[..., None], loader: DataLoader[Any], *args: Any, **named: Any) -> None:
        original(loader, *args, **named)
        if loader not in self._loaders:
            self._loaders[loader] = users_calls()
            self._made += 1
            if self.seen.loader is not None and self._made - 1 == self.seen.loader.number:
                self.trained_on = loader

    def _turns(self) -> None:
        """What follows belongs to no step."""
        if not self._turned:
            self.drain()
        self._turned = True

    def _loader_iterated(self, original: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        self._turns()
        return _Timed(original(loader), self)

    def waited(self, batches: _Timed, begin: float) -> None:
        """For a batch of a loader."""
        self._step.data_wait += self._own_seconds(begin, self._counted)
        if batches.read_at is not None and batches.read_at < self.main.updates:
            self._read_on = ref(batches)
        else:
            self._read_new = ref(batches)
        batches.read_at = self.main.updates
        self.batches += 1

    def now(self) -> float:
        if self.settles:
            self.settle()
        return time.perf_counter()

    def _own_seconds(self, begin: float, counted: float) -> float:
        """From there until now, without those that were counted in between. counted: as it was at the beginning."""
        self._part_began = end = self.now()
        seconds = end - begin - (self._counted - counted)
        self._counted += seconds
        return seconds

    def _backward(self, original: Callable[..., None], tensors: Any, *args: Any, **named: Any) -> None:
        loss = tensors if isinstance(tensors, Tensor) else next(iter(tensors))
        self.losses.append(loss_value(loss))
        self._step.to_backward += self._own_seconds(self._part_began, self._counted)
        begin, counted = self._part_began, self._counted
        original(tensors, *args, **named)
        self._step.backward += self._own_seconds(begin, counted)

    def _interrupts(self, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """What saves or evaluates."""
        self._turns()
        return original(*args, **named)

    def _scaled_step(
        self, original: Callable[..., Any], scaler: Any, optimizer: Optimizer, *args: Any, **named: Any
    ) -> Any:
        """A step that overflows is no update, and in no interval."""
        before = self.main.updates
        result = original(scaler, optimizer, *args, **named)
        if optimizer is self.main.optimizer and self.main.updates == before:
            self._last = self._part_began = self.now()
            self._step = Parts()
        return result

    def _begins(self, optimizer: Optimizer, args: Any, named: Any) -> None:
        self._part_began = self.now()
        self._update = self._part_began, self._counted

    def _ends(self, optimizer: Optimizer, args: Any, named: Any) -> None:
        self._step.optimizer += self._own_seconds(*self._update)
        if optimizer is not self.main.optimizer:
            return
        if self._turned:
            self.settle()
        now = time.perf_counter()
        step, self._step = self._step, Parts()
        begins_epoch = self.seen.loader is not None and self._read_new is not None and self._read_on is None
        self._stepped_on = self._read_on or self._read_new or self._stepped_on
        self._read_on = self._read_new = None
        self.main.updates += 1
        if self.main.updates <= UNTIMED_STEPS and not self.is_first:
            pass  # the script was started again
        elif self.main.updates == 1:
            self.start_seconds, self.first_step_seconds = now - self.began, step.computing
        elif self._turned and not self._had_turned:
            (self.turns if begins_epoch else self.interruptions).append(now - self._last)
        elif self.main.updates <= self.filling_steps:
            self.filling.append(now - self._last)
        else:
            self.intervals.append(now - self._last)
            self.parts.add(step)
        self._had_turned, self._turned, self._last = self._turned, False, now
        self._is_handed_over = True
        self.at_update()
        self._is_handed_over = False


class _Timed(Iterator[Any]):
    def __init__(self, batches: Iterator[Any], clock: StepClock) -> None:
        self._batches, self._clock = batches, clock
        self.read_at: int | None = None  # after so many updates, the last time

    def __next__(self) -> Any:
        if self._clock.epoch_ends(self):
            raise StopIteration
        begin = self._clock.now()
        batch = next(self._batches)
        self._clock.waited(self, begin)
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # pyright: ignore[reportArgumentType]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
