"""What `hasten doctor` measures: a profile of the model, and a profile of a run's steps."""

from __future__ import annotations

from dataclasses import dataclass

LARGER = (4, 16, 64, 256)  # factors by which a larger batch is tried
LITTLE = 2.0  # a step is hardly slower, where it takes less than so many times as long for four times the samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A module that has parameters, or does counted arithmetic itself.

    path, line: of the user's class that contains it; "" and 0 where that is not known.
    sizes: of its matrix product, by name: {"in_features": 50, …}.
    """

    name: str  # as in model.named_modules()
    kind: str  # the class's name
    path: str
    line: int
    parameters: int
    sizes: tuple[tuple[str, int], ...]
    is_called: bool
    without_gradient: tuple[str, ...]  # parameters that require a gradient and got none, though the layer was called
    flops_share: float  # of the step's counted floating-point operations, 0 to 1
    activation_bytes: int  # saved for the backward pass at the step's peak


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelProfile:
    """A model's layers, and what a few training steps did with them.

    steps: that were trained for it.
    useless_biases: of convolutions whose batch norm cancels them; None where the model cannot be traced.
    untraceable: why it cannot.
    uncounted: why the floating-point operations are unknown, where they are.
    """

    device: str  # "cpu", "cuda:0"
    precision: str  # "float32", "bfloat16", "float16": the dtype of matrix products
    steps: int
    layers: tuple[Layer, ...]
    useless_biases: tuple[str, ...] | None
    untraceable: str
    flops_per_sample: float | None
    memory_bytes: int  # of the device
    peak_bytes: int
    activation_bytes: int  # at the peak
    uncounted: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Seconds of one optimizer step. low, high: the range of the measured windows."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LargerBatch:
    """A step with `times` the batch, its batches loaded before."""

    times: int
    step: Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class NotMeasured:
    """In place of a measurement: why there is none."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopCost:
    """The operations that a line in a Python loop starts, with the user's own functions that it calls.

    operations: in a step.
    passes: how often Python comes to the line; 0 where that is not known.
    over_layers: whether each parameter is used a few times at most, as in a loop over layers.
    seconds, high, timed: as of a Line.
    """

    operations: int
    passes: int
    over_layers: bool
    seconds: float
    high: float
    timed: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of the user's code that steps run through.

    seconds: of a step, sampled, in the line and in what it calls outside of the user's code.
    high: the upper end of their 95 % interval, or `timed` where that is more.
    timed: the least of a few steps in a row; 0 where one of them did not run through the line.
    operations, reads, copies: of tensors in a step, that the line starts, also in layers that it calls.
    direct: operations that it starts itself.
    copying_seconds: of the copies alone.
    turns: of a line in a loop.
    """

    path: str
    line: int
    function: str
    in_loading: bool
    seconds: float
    high: float
    timed: float = 0.0
    operations: int = 0
    direct: int = 0
    reads: int = 0
    copies: int = 0
    copied_bytes: int = 0
    copying_seconds: float = 0.0
    turns: LoopCost | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerNote:
    """What the compiler reported about a place in the user's code. times: in the whole profile."""

    path: str
    line: int
    why: str
    times: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceUse:
    """Of an accelerator.

    busy_seconds: of a step, with a kernel or a copy running; None where the profiler may not see them.
    retries: of its allocator, in `steps` steps.
    reserved_bytes: that it holds at the peak.
    fragmented: the share of these, 0 to 1, that is neither in use nor can be released.
    """

    busy_seconds: float | None
    steps: int
    retries: int
    reserved_bytes: int
    fragmented: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCost:
    """Of one checkpoint, saved in the background.

    stall_seconds: for which training stops. seconds: until it was read back.
    every_seconds: between two by default. share: of the time that they take then, 0 to 1.
    """

    bytes: int
    stall_seconds: float
    seconds: float
    every_seconds: float
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RetainedMemory:
    """A step where the C library retains memory that is freed, and one at the same batches where it returns it to the
    system."""

    kept: Seconds
    returned: Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProfile:
    """Where the seconds of a job's steps go, measured in a few of them.

    together: a step of the job, unchanged. waited: of these, for the next batch.
    computing: a step whose batch is loaded already.
    loading: loading alone, without training. loading_cpu: its processor time, in this process and its workers.
    larger: steps of one batch and of LARGER times it, as far as they show how little more a sample costs; or none.
    no_larger: why the next factor was not measured; "" where there was no need.
    checkpoint: the cost of one, as a run saves it.
    growth: bytes by which memory grew in every step of the second half; None where it did not.
    new_pages: pages of host memory that a step touches for the first time; page_seconds, page_bytes: of one, which may
        be several of the system's.
    kept_memory: what it gains that the C library retains freed memory; None where too few pages are new, where the plan
        does so already, and where the library has no such setting.
    others: cores that other processes used meanwhile.
    not_counted: why operations and seconds of lines are unknown; "" where they are known.
    graph_breaks: where a compiled model falls back to Python. recompiled: what was compiled again, by its reason.
    """

    device: str
    machine: str
    batch_size: int
    workers: int
    reading_cores: int  # that loading can keep busy: 1 for threads, of which one runs Python at a time
    steps_per_epoch: int | None
    planned_steps: int | None
    evaluations_per_epoch: float
    steps: int  # in all
    together: Seconds
    waited: Seconds
    computing: Seconds
    loading: Seconds
    loading_cpu: float
    larger: tuple[LargerBatch, ...]
    no_larger: str
    parts: dict[str, float]  # of a step: data_wait, transfer, forward, backward, optimizer, python
    evaluation_seconds: float | NotMeasured  # 0 where there is none
    checkpoint: CheckpointCost | NotMeasured
    operations: int  # on tensors in a step, forward and backward
    lines: tuple[Line, ...]  # the slowest first
    growth: int | None
    new_pages: float
    page_seconds: float
    page_bytes: float
    kept_memory: RetainedMemory | None
    free_bytes: int
    others: float
    graph_breaks: tuple[CompilerNote, ...] = ()
    recompiled: tuple[CompilerNote, ...] = ()
    device_use: DeviceUse | None = None  # of an accelerator alone
    not_counted: str = ""

    @property
    def epoch_steps(self) -> int:
        """Of an epoch; of the planned run where its end is not known."""
        return self.steps_per_epoch or self.planned_steps or 1

    @property
    def epoch_seconds(self) -> float:
        """Without evaluations where their time is not known."""
        known = 0.0 if isinstance(self.evaluation_seconds, NotMeasured) else self.evaluation_seconds
        return self.epoch_steps * self.together.value + self.evaluations_per_epoch * known
