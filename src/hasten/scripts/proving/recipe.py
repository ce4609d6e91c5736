"""What the steps of a script are made of, read in the process of a trial.

A plan may round in another way or draw other random numbers. It changes nothing of the recipe: the settings of the
optimizers in each update and what they train, the batches that a step reads, when gradients are clipped, how much is
dropped out, which modules are in training mode, and the order of samples. The losses of a few steps do not show most of
that, and a proof of gradients switches dropout off.

A recipe is a table: name -> its value in each step, as text. Compiled code runs eagerly meanwhile, as it would hide the
calls that are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hasten.scripts.patching import replaced
from hasten.scripts.proving.dropout import dropout_watched
from hasten.scripts.proving.loader_recipe import loader_recipe
from hasten.scripts.trials.step_clock import StepClock

STEPS_OF_AN_EPOCH = 8  # of two
_CLIPPINGS = ("clip_grad_norm_", "clip_grad_value_")
_SETTINGS = frozenset({"lr", "weight_decay", "momentum", "betas", "eps"})  # of any optimizer
_NO_SETTINGS = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})  # of torch's optimizers


@dataclass(kw_only=True)
class Recipe:
    """steps: so many have been read."""

    steps: int = 0
    _read: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _now: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # since the last step
    _dropped: Counter[float] = field(default_factory=Counter[float])  # probability -> numbers, since then
    _losses: list[Tensor] = field(default_factory=list[Tensor])
    _optimizers: list[Optimizer] = field(default_factory=list[Optimizer])
    _batches: int = 0  # that had been read then
    _updates_begun: int = 0  # of all optimizers
    _clock: StepClock = field(init=False)
    _resources: ExitStack = field(default_factory=ExitStack)

    def start(self, clock: StepClock) -> None:
        """Before the script starts."""
        self._clock = clock
        torch.compiler.set_stance("force_eager")
        enter = self._resources.enter_context
        enter(replaced(torch.autograd, "backward", self._backward))
        for name in _CLIPPINGS:
            enter(replaced(nn.utils, name, self._clips))
        dropout_watched(self._resources, self._drops)
        enter(replaced(torch.amp.GradScaler, "step", self._scaled_step))
        self._resources.callback(register_optimizer_step_pre_hook(self._updates).remove)

    def of_two_epochs(
        self, end_epoch: Callable[[], None], starts: Callable[[], int]
    ) -> Generator[None, None, dict[str, list[str]]]:
        """Of their first steps; it yields for each but the first. starts: how often the script was started."""
        clock = self._clock
        while starts() == 1:
            self._updated(clock.module)
            if self.steps == 2 * STEPS_OF_AN_EPOCH:
                break
            if self.steps == STEPS_OF_AN_EPOCH and clock.has_second_epoch:
                end_epoch()
            yield
        fits = all(torch.equal(each, each.bfloat16().to(each.dtype)) for each in self._losses)
        precision = {"precision of the losses": ["bfloat16" if fits else "higher"]}
        return self._read | precision | ({} if clock.trained_on is None else loader_recipe(clock.trained_on))

    def _updated(self, module: nn.Module | None) -> None:
        """module: that is trained."""
        self._note("batches read", str(self._clock.batches - self._batches))
        self._note("dropout", ", ".join(f"{numbers:,} at {p:g}" for p, numbers in sorted(self._dropped.items())))
        if module is not None:
            self._note("modules in training mode", _in_training_mode(module))
        for name in self._read.keys() | self._now.keys():
            values = self._read.setdefault(name, [""] * self.steps)
            values.append(", ".join(self._now.get(name, [])))
        self._begin_step()
        self.steps += 1

    def _begin_step(self) -> None:
        self._now.clear()
        self._dropped.clear()
        self._batches = self._clock.batches

    def _note(self, name: str, value: str) -> None:
        self._now.setdefault(name, []).append(value)

    # ── what is watched for ─────────────────────────────────────────────────────────────────────────────────────────

    def _backward(self, original: Callable[..., None], tensors: Any, *args: Any, **named: Any) -> None:
        loss = tensors if isinstance(tensors, Tensor) else next(iter(tensors))
        self._losses.append(loss.detach().clone())
        in_autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        self._note("calls", "backward in autocast" if in_autocast else "backward")
        original(tensors, *args, **named)

    def _clips(self, original: Callable[..., Any], parameters: Any, *args: Any, **named: Any) -> Any:
        most = args[0] if args else named.get("max_norm", named.get("clip_value"))
        self._note("calls", f"{original.__name__} {_text(most)}")
        return original(parameters, *args, **named)

    def _drops(self, p: float, numbers: int) -> None:
        self._dropped[p] += numbers

    def _scaled_step(self, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """A step that overflows is none: rounding decides which ones do."""
        before = self._updates_begun
        result = original(*args, **named)
        if self._updates_begun == before:
            self._begin_step()
        return result

    def _updates(self, optimizer: Optimizer, args: Any, named: Any) -> None:
        self._updates_begun += 1
        if not any(each is optimizer for each in self._optimizers):
            self._optimizers.append(optimizer)
        number = next(place for place, each in enumerate(self._optimizers) if each is optimizer)
        self._note("calls", f"update {number + 1}")
        for place, group in enumerate(optimizer.param_groups):
            where = f"of group {place + 1} of {type(optimizer).__name__} {number + 1}"
            self._note(f"parameters {where}", _parameters(group["params"]))
            for name, value in _settings(optimizer, group):
                self._note(f"{name} {where}", value)


def _settings(optimizer: Optimizer, group: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Optimizers of other libraries also keep there what they have computed, as Prodigy does."""
    is_torchs = type(optimizer).__module__.startswith("torch.")
    for name, value in group.items():
        parts = value if isinstance(value, tuple | list) else [value]
        is_setting = name not in _NO_SETTINGS if is_torchs else name in _SETTINGS
        if is_setting and all(isinstance(each, bool | int | float | Tensor | None) for each in parts):
            yield name, ", ".join(map(_text, parts))


def _text(value: Any) -> str:
    return repr(value.item() if isinstance(value, Tensor) else value)


def _parameters(group: list[Tensor]) -> str:
    kinds = ", ".join(sorted({str(each.dtype).removeprefix("torch.") for each in group}))
    trained = sum(each.requires_grad for each in group)
    return f"{len(group)} of {sum(each.numel() for each in group):,} numbers in {kinds}, {trained} trained"


def _in_training_mode(module: nn.Module) -> str:
    modules = [*module.modules()]
    return f"{sum(each.training for each in modules)} of {len(modules)}"
