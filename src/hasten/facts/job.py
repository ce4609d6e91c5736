"""A training job: a record of ordinary functions and settings.

Every field is checked when the job is created, as far as that is possible without building anything. An error names the
field, its value and what to write.
"""

# A job is written by hand and run without a type checker, so the types of its fields are checked at run time.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, cast

from hasten.errors import JobError
from hasten.users_code import torchs_loss

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torchmetrics import Metric

    from hasten.facts.events import AnyReceiver

Unit = Literal["step", "epoch", "evaluation"]
_GENERATORS = ("Generator", "RandomState", "Random")  # by name, as this file loads without torch and NumPy
UNITS: tuple[Unit, ...] = ("step", "epoch", "evaluation")
SEED_THE_DATA = (
    "draw the data from a generator with a seed, such as torch.Generator().manual_seed(0) or "
    "numpy.random.default_rng(0), and sort what comes from a set or a folder"
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A learning-rate scheduler and what one of its steps is.

    build: (optimizer), (optimizer, total_steps) or (optimizer, total_epochs) -> torch scheduler. The totals are derived
        from the job, in optimizer steps and epochs.
    unit: "step" after every applied update, "epoch" at the end of every epoch, "evaluation" after every evaluation with
        the value of `metric`.
    metric: which evaluation result ReduceLROnPlateau watches: "loss" or a key of Job.metrics.
    """

    build: Callable[..., Any]
    unit: Unit
    metric: str = "loss"

    def __post_init__(self) -> None:
        if not callable(self.build):
            raise JobError("schedule", f"Schedule.build is {describe(self.build)}", "give a function of the optimizer")
        if self.unit not in UNITS:
            raise JobError("schedule", f"Schedule.unit is {self.unit!r}", f"write one of {', '.join(UNITS)}")


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """End the run when `metric` has not improved for `patience` evaluations in a row, and keep the best weights.

    metric: "loss" (of the evaluation) or a key of Job.metrics.
    patience: counted in evaluations, not in epochs or steps.
    mode: "min" or "max"; None asks the metric itself (torchmetrics' higher_is_better), and is "min" for "loss".
    min_delta: an improvement must be larger than this, in the metric's own unit.
    """

    metric: str = "loss"
    patience: int = 10
    mode: Literal["min", "max"] | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if not is_whole(self.patience):
            raise JobError("stop", f"patience is {describe(self.patience)}", "write how many evaluations: 1 or more")
        if self.mode not in ("min", "max", None):
            raise JobError("stop", f"mode is {self.mode!r}", 'write "min", "max" or None')
        if not (is_number(self.min_delta) and self.min_delta >= 0):
            was = f"min_delta is {describe(self.min_delta)}"
            raise JobError("stop", was, "write a number of 0 or more; the direction is `mode`'s")


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the weights of the best evaluation; of equal ones, the first. It does not end the run: EarlyStopping does.

    metric, mode: as of EarlyStopping.
    """

    metric: str = "loss"
    mode: Literal["min", "max"] | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max", None):
            raise JobError("keep", f"mode is {self.mode!r}", 'write "min", "max" or None')


@dataclass(frozen=True, slots=True)
class ExponentialAverage:
    """Evaluate and keep an exponential moving average of the weights, updated once for each applied update.

    Averaged are parameters that require a gradient, and floating-point buffers named running_mean or running_var (batch
    norm's statistics). Frozen and whole-number parameters and all other buffers are copied from the model.

    Source: Polyak and Juditsky 1992; as torch.optim.swa_utils.get_ema_multi_avg_fn computes it.
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise JobError("average", f"decay is {self.decay}", "write a number between 0 and 1, such as 0.999")


@dataclass(frozen=True, slots=True)
class EqualAverage:
    """Evaluate and keep the plain mean of the weights after each applied update from `start` of the planned run on.

    What is averaged and what is copied is the same as for ExponentialAverage.

    Source: stochastic weight averaging, Izmailov et al. 2018, arXiv:1803.05407.
    """

    start: float = 0.75

    def __post_init__(self) -> None:
        if not 0 <= self.start < 1:
            raise JobError("average", f"start is {self.start}", "write the fraction of the run to skip, 0 to 1")


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one microbatch: what a job's loss function returns.

    A sum and its count, because means of unequal microbatches do not average to the mean of the whole batch. With both,
    a window of microbatches over any number of ranks gives exactly the large batch's mean.

    total: scalar tensor, the sum of the items' losses. It carries the graph.
    count: how many items were summed (samples, valid tokens, …): a number, or a scalar tensor on the total's device,
        without a graph. Zero is allowed: such a microbatch weighs nothing. Below 0, NaN and infinity are refused.
    auxiliary: scalar tensor or None; a term that is already a mean over the microbatch's samples (load balancing,
        regularisation). It keeps its own scaling: microbatches are weighted by their number of samples.
    prediction, target: what the job's metrics are updated with, 16-bit tensors in float32; None where there are no
        metrics.
    parts: name -> scalar tensor, a term of the total, such as {"reconstruction": …, "kl": …}: its sum over the same
        items. Logs and evaluations show their means; nothing is differentiated through them. A part that a call
        leaves out is zero there.
    """

    total: Tensor
    count: Tensor | float
    auxiliary: Tensor | None = None
    prediction: Any = None
    target: Any = None
    parts: Mapping[str, Tensor] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One training job.

    model: () -> torch.nn.Module, newly initialised. Called under the job's seed.
    loss: (model, batch) -> Loss(total, count), or a scalar tensor that is a mean over the batch's first dimension.
        `hasten.supervised` makes one from a torch loss.
    optimizer: (params) -> torch.optim.Optimizer, or a list of them that together hold every parameter once. Those with
        train() and eval() (schedule-free ones) are in evaluation mode while weights are evaluated or returned, else in
        training mode.
    train, valid: a map-style or iterable data set, a tuple of tensors or arrays of one length, a DataLoader (its
        data set, collate, sampler and batch size, or batch_sampler, are taken over), or a function that returns one.
    batch_size: samples in one optimizer step, over all microbatches and devices. None only with a DataLoader.
    epochs, max_steps: the planned length; with both, whichever comes first. Steps are applied optimizer steps.
    schedule: Schedule, or a function (optimizer, total_steps) or (optimizer, total_epochs) -> torch scheduler.
    metrics: name -> torchmetrics.Metric, or anything with its update, compute and reset, updated with (prediction,
        target) of the Loss in evaluations; or a function (prediction, target) -> number, called once with those of the
        whole evaluation. Over several processes each has those of all samples, and exchanges nothing.
    parameters: (model) -> what `optimizer` is given; None gives it model.parameters(). For parameter groups.
    average: ExponentialAverage or EqualAverage: evaluated and kept in place of the weights.
    clip_norm, clip_value: gradient clipping, after unscaling and before the update. clip_norm of 0 makes every gradient
        zero; momentum and weight decay still change parameters.
    shuffle, drop_last, collate: as of a DataLoader, for the training data; collate also for the valid data.
    on_bad_sample: what happens when a training sample cannot be read: "stop", or "replace" it by another, the same one
        in every run; the run stops all the same when more than one in a thousand are bad.
    stop: when to end the run early; None trains to the planned end.
    keep: which weights the run results in. Best("accuracy") keeps those of the best evaluation, "best" is Best("loss"),
        and None keeps the best by `stop` where it is given, else the last. With both, `stop` ends and `keep` chooses.
    evaluate_every: optimizer steps between evaluations; None evaluates at the end of every epoch. It, metrics, stop and
        keep are refused without valid, where nothing would use them.
    log_every: optimizer steps between two lines of metrics.
    state: name -> an object with state_dict and load_state_dict, or a random generator (torch, NumPy or Python), that
        the loss or the model changes while it trains: a teacher, a memory bank, a generator. Checkpoints hold it, and
        evaluations and retried steps do not change it. A loss with both methods is declared by being one. State that
        the loss holds directly is checked in the first two steps: what changes undeclared is an error. State in deeper
        places, such as a list of modules, is not found.
    eval_loss: what evaluations compute, where it differs from `loss`; the same form. None is `loss`.
    seed: of all randomness in training: initialisation, order, samples, dropout. torch's default generators are
        reseeded for every optimizer step, by this seed, the rank and the step's number. Data that the job's function
        draws has its own seed: the command line seeds torch's, NumPy's and Python's generators with 0, or with --seed,
        before it loads the job's file and before it calls the function. From Python, seed what draws the data.
    device: a torch device; None takes the accelerator where there is one.
    receivers: of the run's events (hasten.facts.events), called beside what train() shows: functions of one event, or
        objects with log(event) and close(). Only the first process calls them. One that raises is dropped and logged.
    """

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], Loss | Tensor]
    optimizer: Callable[[Iterable[Any]], Optimizer | list[Optimizer]]
    train: Any
    valid: Any = None
    batch_size: int | None = None
    epochs: int | None = None
    max_steps: int | None = None
    schedule: Schedule | Callable[..., Any] | None = None
    metrics: Mapping[str, Metric | Callable[[Any, Any], Any]] = field(default_factory=dict[str, Any])
    parameters: Callable[[nn.Module], Iterable[Any]] | None = None
    average: ExponentialAverage | EqualAverage | None = None
    stop: EarlyStopping | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    shuffle: bool = True
    drop_last: bool = False
    collate: Callable[[list[Any]], Any] | None = None
    on_bad_sample: Literal["stop", "replace"] = "stop"
    evaluate_every: int | None = None
    log_every: int = 50
    seed: int = 0
    device: str | None = None
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    eval_loss: Callable[[nn.Module, Any], Loss | Tensor] | None = None
    keep: Best | Literal["best"] | None = None
    receivers: Sequence[AnyReceiver] = ()

    def __post_init__(self) -> None:
        if self.keep == "best":
            object.__setattr__(self, "keep", Best())
        self._check_functions()
        self._check_numbers()
        self._check_records()
        self._check_evaluations()

    @property
    def keeps(self) -> Best | EarlyStopping | None:
        """The rule of the evaluation whose weights are kept: `keep`, else `stop`; None keeps the last weights."""
        return self.keep if isinstance(self.keep, Best) else self.stop

    def _check_functions(self) -> None:
        for name in ("loss", "eval_loss"):
            if written := torchs_loss(getattr(self, name)):
                fix = f"write {name}=hasten.supervised({written}), or a function: def loss(model, batch): ..."
                raise JobError(name, f"is {written}, and a job's loss takes (model, batch)", fix)
        examples = {
            "model": (0, "lambda: MyModel()"),
            "loss": (2, "hasten.supervised(torch.nn.functional.cross_entropy)"),
            "optimizer": (1, "lambda params: torch.optim.AdamW(params, lr=1e-3)"),
        }
        for name, (arguments, example) in examples.items():
            given = getattr(self, name)
            if not callable(given) or (name != "loss" and _is_built(given)):
                raise JobError(name, f"is {describe(given)}", f"give a function: {name}={example}")
            _check_arity(name, given, arguments, example)
        optional = {
            "eval_loss": "give a function of the model and a batch, or None",
            "parameters": "give a function of the model, or None",
            "schedule": "give a function: lambda optimizer, total_steps: OneCycleLR(optimizer, 0.1, total_steps)",
            "collate": "give a function of a list of samples, or None",
        }
        for name, fix in optional.items():
            given = getattr(self, name)
            if given is not None and not callable(given) and not isinstance(given, Schedule):
                raise JobError(name, f"is {describe(given)}", fix)

    def _check_numbers(self) -> None:
        if self.on_bad_sample not in ("stop", "replace"):
            raise JobError("on_bad_sample", f"is {describe(self.on_bad_sample)}", 'write "stop" or "replace"')
        if self.train is None:
            raise JobError("train", "is None", "give a data set, a tuple of tensors, or a function that builds one")
        if self.epochs is None and self.max_steps is None:
            raise JobError("epochs", "is not given, and neither is max_steps", "set the length: epochs=20")
        for name in ("batch_size", "epochs", "max_steps", "evaluate_every", "log_every"):
            number = getattr(self, name)
            if not is_whole(number) and (number is not None or name == "log_every"):
                raise JobError(name, f"is {describe(number)}", "write a whole number of 1 or more")
        for name in ("clip_norm", "clip_value"):
            number = getattr(self, name)
            if number is not None and not (is_number(number) and number >= 0):
                raise JobError(name, f"is {describe(number)}", "write a number of 0 or more, or None for no clipping")
        if not is_whole(self.seed, least=0) or self.seed >= 2**63:
            raise JobError("seed", f"is {describe(self.seed)}", "write a whole number from 0 to 2^63 - 1")

    def _check_records(self) -> None:
        if self.stop is not None and not isinstance(self.stop, EarlyStopping):
            raise JobError("stop", f"is {describe(self.stop)}", 'write hasten.EarlyStopping("loss", patience=10)')
        if self.keep is not None and not isinstance(self.keep, Best):
            raise JobError("keep", f"is {describe(self.keep)}", 'write "best" or hasten.Best("accuracy")')
        if self.average is not None and not isinstance(self.average, ExponentialAverage | EqualAverage):
            raise JobError("average", f"is {describe(self.average)}", "write hasten.ExponentialAverage(decay=0.999)")
        if not isinstance(self.state, Mapping):
            raise JobError("state", f"is {describe(self.state)}", 'write a dictionary: {"teacher": teacher}')
        for name, part in self.state.items():
            if not isinstance(name, str) or not name or "." in name or name == "loss":
                raise JobError("state", f"has the name {name!r}", 'write a name without a dot, other than "loss"')
            if not (_has_methods(part, "state_dict", "load_state_dict") or type(part).__name__ in _GENERATORS):
                fix = (
                    "give an object with state_dict and load_state_dict, such as a module with a buffer; or a generator"
                )
                raise JobError("state", f"{name!r} is {describe(part)}", fix)
        if wrong := no_receiver(self.receivers):
            raise JobError("receivers", wrong, RECEIVERS_ARE)
        if not isinstance(self.metrics, Mapping):
            raise JobError("metrics", f"is {describe(self.metrics)}", 'write a dictionary: {"accuracy": metric}')
        for name, metric in self.metrics.items():
            if not isinstance(name, str):
                raise JobError("metrics", f"has the name {describe(name)}", 'write a text: {"accuracy": metric}')
            if callable(metric) and not isinstance(metric, type) and not hasattr(metric, "update"):
                _check_arity("metrics", metric, 2, f'{{"{name}": lambda prediction, target: ...}}', of=f"{name!r} ")
            if isinstance(metric, type) or not (is_function(metric) or _has_methods(metric, *_OF_A_METRIC)):
                raise JobError("metrics", f"{name!r} is {describe(metric)}", f"give {METRICS_ARE}")
        if "loss" in self.metrics:
            raise JobError("metrics", 'has the name "loss", which is the evaluation loss', "choose another name")

    def _check_evaluations(self) -> None:
        for name in ("stop", "keep", "metrics", "evaluate_every") if self.valid is None else ():
            if given := getattr(self, name):
                was = f"is {describe(given)}, but there is no valid data to evaluate on"
                raise JobError(name, was, f"give valid=…, or remove {name}=")
        for name, rule in (("stop", self.stop), ("keep", self.keeps)):
            if rule is not None and rule.metric not in ("loss", *self.metrics):
                was = f"watches {rule.metric!r}, which is not a metric of the job"
                raise JobError(name, was, f"write one of: {', '.join(['loss', *self.metrics])}")


def describe(value: object) -> str:
    """A value as an error message shows it: short, with its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 40 else text[:37] + '…'} ({type(value).__name__})"


def _is_built(value: object) -> bool:
    """True for a module or optimizer given where the function that makes one belongs."""
    return hasattr(value, "state_dict") and not isinstance(value, type)


_OF_A_METRIC = "update", "compute", "reset"
METRICS_ARE = "a torchmetrics.Metric, an object with update, compute and reset, or a function of prediction and target"
RECEIVERS_ARE = "give a list of receivers, each a plain function of one event or an object with log(event) and close()"


def no_receiver(given: object) -> str | None:
    """What is wrong with receivers; None where nothing is."""
    if not isinstance(given, Sequence):
        return f"is {describe(given)}"
    wrong = (each for each in cast("Sequence[object]", given) if not is_receiver(each))
    return next((f"has {describe(each)}" for each in wrong), None)


def is_function(metric: object) -> bool:
    """Whether a metric is a function of prediction and target, and not an object that is updated."""
    return not _has_methods(metric, *_OF_A_METRIC) and _takes(metric, 2)


def is_receiver(value: object) -> bool:
    no_call = isinstance(value, type) or inspect.iscoroutinefunction(value) or inspect.isgeneratorfunction(value)
    return not no_call and (_has_methods(value, "log", "close") or _takes(value, 1))


def _has_methods(value: object, *names: str) -> bool:
    return all(callable(getattr(value, name, None)) for name in names)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is an integer or a float; true and false are neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object, least: int = 1) -> TypeGuard[int]:
    """Whether it is an integer of at least `least`; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_arity(name: str, function: Callable[..., Any], wanted: int, example: str, of: str = "") -> None:
    if not _takes(function, wanted):
        signature = inspect.signature(function)
        many = "no argument" if wanted == 0 else f"{wanted} argument{'s' if wanted > 1 else ''}"
        raise JobError(name, f"{of}cannot be called with {many}: it takes {signature}", f"{name}={example}") from None


def _takes(function: object, arguments: int) -> bool:
    """Whether it is called with so many arguments. True for a built-in function: only a call shows it."""
    if not callable(function):
        return False
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True
