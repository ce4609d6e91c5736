"""What an observed script trains, as facts that another process can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the user's code. line: from 1; column: bytes of UTF-8 from 0, as ast counts, -1 where Python does not
    know it. end: line and column behind the call."""

    file: str
    line: int
    column: int
    end: tuple[int, int]
    function: str


Stack = tuple[Call, ...]
"""Running calls of the user's, the innermost first: a library can lie between the innermost one and torch, and one
helper can be called from several places."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenLoader:
    """number: how many loaders the script had made before it. dataset_file: of the class of its data set, or of the one
    that a Subset is of; "" of a library's. batches: of an epoch, None where that has no length."""

    number: int
    kind: str  # its class
    dataset: str  # the class of its data set
    dataset_file: str
    made: Stack
    made_by: str  # the library that made it for the script; "" for the script itself
    rebuilt_by: str  # the library that made the steps' loader from the script's own; "" where the steps read that
    batch_size: int | None
    batches: int | None
    workers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenModel:
    """The module whose forward the script calls itself. names: expressions that are the module in the function that
    calls `named`, which makes the optimizer. images: positions of the arguments of its forward that are tensors of
    floating point with four dimensions. inputs: shape and dtype of those that are tensors. is_wrapped: it is, or has in
    it, a DistributedDataParallel; unwrapped: names of what that wraps, in the function that calls `wrapping`."""

    kind: str
    parameters: int
    trained: int  # of them, parameters that require gradients
    device: str
    names: tuple[str, ...]
    images: tuple[int, ...]
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    called: Stack
    named: Stack = ()
    is_wrapped: bool = False
    unwrapped: tuple[str, ...] = ()
    wrapping: Stack = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenOptimizer:
    """number: how many optimizers the script had made before it."""

    number: int
    kind: str
    made: Stack
    made_by: str  # the library that made it for the script; "" for the script itself
    stepped: Stack
    implementation: str  # "fused", "foreach", "for_loop", or "" where torch decides


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenTrainer:
    """An object of another library whose arguments decide how the script trains. kind: library and class, such as
    "lightning.Trainer". precision: as the library calls it; "" for float32."""

    kind: str
    made: Stack
    made_by: str  # the library that made it for the script; "" for the script itself
    precision: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Of one function that contains both: its calls in which the forward of the step and its backward run."""

    forward: Call
    backward: Call


@dataclass(frozen=True, kw_only=True, slots=True)
class Length:
    """Of the whole training, as its loops say. why: of a number that is not known, a sentence. interrupted: once in so
    many steps, the innermost loop does more than to print and log. again: function and place of a later call of what
    trains now, whose steps are not counted."""

    steps: int | None
    epochs: int | None
    why: str = ""
    interrupted: bool = False
    again: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """What the script writes before its first step where it is missing, as a download. paths: of the user's, which do
    not exist; folder: that holds the data, each at its whole path, for the time of a search."""

    folder: str
    paths: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """loader: that the steps read, None where the script has another source. main: the number of the optimizer whose
    updates are counted as steps: of several the one that was made first. windows: of all backward passes of a step;
    empty where one call of the script's does a whole pass."""

    loader: SeenLoader | None
    model: SeenModel
    optimizers: tuple[SeenOptimizer, ...]
    main: int
    backward: Stack
    windows: tuple[Window, ...]
    autocast: str  # of the script's own: "enabled", or "disabled" in a step that it is around; "" for none
    length: Length
    updates: int  # that were observed
    seconds: float  # from the script's start to the last of them
    trainer: SeenTrainer | None = None
    prepared: PreparedData | None = None

    @property
    def optimizer(self) -> SeenOptimizer:
        return next(each for each in self.optimizers if each.number == self.main)


def as_table(seen: Seen) -> dict[str, Any]:
    return asdict(seen)


def seen_of(table: Mapping[str, Any]) -> Seen:
    loader, trainer, prepared = table["loader"], table["trainer"], table["prepared"]
    model = _with_tuples(table["model"], "names", "images", "inputs", "unwrapped")
    return Seen(
        **{name: table[name] for name in ("main", "autocast", "updates", "seconds")},
        loader=None if loader is None else SeenLoader(**_with_stacks(loader, "made")),
        model=SeenModel(**_with_stacks(model, "called", "named", "wrapping")),
        optimizers=tuple(SeenOptimizer(**_with_stacks(each, "made", "stepped")) for each in table["optimizers"]),
        backward=_stack(table["backward"]),
        windows=tuple(Window(**{name: _call(call) for name, call in each.items()}) for each in table["windows"]),
        length=Length(**table["length"]),
        trainer=None if trainer is None else SeenTrainer(**_with_stacks(trainer, "made")),
        prepared=None if prepared is None else PreparedData(**_with_tuples(prepared, "paths")),
    )


def _with_stacks(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {**table, **{name: _stack(table[name]) for name in names}}


def _with_tuples(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {**table, **{name: tuple(table[name]) for name in names}}


def _stack(calls: Any) -> Stack:
    return tuple(map(_call, calls))


def _call(table: Mapping[str, Any]) -> Call:
    given: dict[str, Any] = {**table, "end": tuple(table["end"])}
    return Call(**given)
