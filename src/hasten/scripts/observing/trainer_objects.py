"""Objects of other libraries that run a script's training for it, as the script makes them.

Their constructors are watched from the moment that the script imports them; no library is imported here. What is read
of the objects is public there. Checked with transformers 5.24, lightning 2.6, and accelerate 1.15.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from hasten.facts.scripts.seen import Length, SeenTrainer, Stack
from hasten.scripts.observing.calls import function_between, library_between, users_calls
from hasten.scripts.patching import replaced


def _of_arguments(made: Any) -> str:
    return "bf16" if made.bf16 else "fp16" if made.fp16 else ""


def _of_lightning(made: Any) -> str:
    return _unless_float32(made.precision)


def _of_fabric(made: Any) -> str:
    return _unless_float32(made.strategy.precision.precision)


def _of_accelerator(made: Any) -> str:
    return _unless_float32(made.mixed_precision)


def _unless_float32(precision: str) -> str:
    return "" if precision in ("32-true", "no") else precision


def _length_of_transformers(made: Any) -> Length:
    steps, epochs = made.state.max_steps, made.state.num_train_epochs
    return Length(steps=steps, epochs=epochs) if steps > 0 else _unlimited("transformers.Trainer")


def _length_of_lightning(made: Any) -> Length:
    steps, epochs = made.estimated_stepping_batches, made.max_epochs
    if not 0 < steps < math.inf:
        return _unlimited("lightning.Trainer")
    return Length(steps=int(steps), epochs=epochs if epochs is not None and epochs > 0 else None)


def _unlimited(kind: str) -> Length:
    return Length(steps=None, epochs=None, why=f"{kind} has no limit of epochs or steps")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Watched:
    """A class. kind: as SeenTrainer's. method: that every construction calls. precision: (the object) -> "" for
    float32; None where its arguments are those of another object. length: (the object) -> of the training; None where
    the script has the loop."""

    kind: str
    method: str = "__init__"
    precision: Callable[[Any], str] | None = None
    length: Callable[[Any], Length] | None = None

    @property
    def name(self) -> str:
        return self.kind.rpartition(".")[2]


_ARGUMENTS = _Watched(kind="transformers.TrainingArguments", method="__post_init__", precision=_of_arguments)
_PARSED = _Watched(kind="transformers.HfArgumentParser", precision=_of_arguments)
_LIGHTNING = _Watched(kind="lightning.Trainer", precision=_of_lightning, length=_length_of_lightning)
_FABRIC = _Watched(kind="lightning.Fabric", precision=_of_fabric)
_WATCHED: Mapping[str, _Watched] = {
    "transformers.training_args": _ARGUMENTS,  # whose subclasses have constructors of their own
    "transformers.trainer": _Watched(kind="transformers.Trainer", length=_length_of_transformers),
    "lightning.pytorch.trainer.trainer": _LIGHTNING,
    "pytorch_lightning.trainer.trainer": _LIGHTNING,
    "lightning.fabric.fabric": _FABRIC,
    "lightning_fabric.fabric": _FABRIC,
    "accelerate.accelerator": _Watched(kind="accelerate.Accelerator", precision=_of_accelerator),
}
"""By the module that defines it."""


@dataclass(frozen=True, slots=True)
class _Made:
    watched: _Watched
    made: Any
    calls: Stack
    by: str


@dataclass(slots=True)
class TrainerObjects:
    """All that were made, in this order."""

    _made: list[_Made] = field(default_factory=list[_Made])
    _validating: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])  # trainer, its own interval

    def start(self, resources: ExitStack) -> None:
        """From now on, until the resources are closed."""
        for name in _WATCHED:
            if name in sys.modules:
                self._watch(sys.modules[name], resources)
        finder = _Finder(lambda module: self._watch(module, resources))
        sys.meta_path.insert(0, finder)
        resources.callback(sys.meta_path.remove, finder)

    def _watch(self, module: ModuleType, resources: ExitStack) -> None:
        watched = _WATCHED[module.__name__]

        def constructed(original: Callable[..., None], made: Any, *args: Any, **named: Any) -> None:
            original(made, *args, **named)
            if not any(each.made is made for each in self._made):
                parsed = watched is _ARGUMENTS and function_between() == "parse_args_into_dataclasses"
                by = "" if parsed else library_between(made)
                self._made.append(_Made(_PARSED if parsed else watched, made, users_calls(), by))

        resources.enter_context(replaced(getattr(module, watched.name), watched.method, constructed))

    def length(self) -> Length | None:
        """Of the training that is running, as the last trainer says; None where the script has the loop."""
        return next((each.watched.length(each.made) for each in reversed(self._made) if each.watched.length), None)

    def epoch_ends_early(self) -> None:
        """The loader is about to end. Lightning validates when it has counted to the epoch's last batch, and not when a
        loader ends before: it does so after the present batch."""
        trainer = next((each.made for each in reversed(self._made) if each.watched is _LIGHTNING), None)
        if trainer is not None and not self._validating:
            self._validating.append((trainer, trainer.val_check_batch))
            trainer.val_check_batch = 1

    def epoch_ended(self) -> None:
        for trainer, interval in self._validating:
            trainer.val_check_batch = interval
        self._validating.clear()

    def seen(self) -> SeenTrainer | None:
        """The last one that the script itself made; else the last one."""
        found = [each for each in reversed(self._made) if each.watched.precision]
        chosen = next((each for each in found if not each.by), found[0] if found else None)
        if chosen is None or chosen.watched.precision is None:
            return None
        precision = chosen.watched.precision(chosen.made)
        return SeenTrainer(kind=chosen.watched.kind, made=chosen.calls, made_by=chosen.by, precision=precision)


class _Finder:
    """then: is called with each watched module when it has been imported."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _WATCHED else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin, self._then)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, then: Callable[[ModuleType], None]) -> None:
        super().__init__(name, path)
        self._then = then

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        self._then(module)
