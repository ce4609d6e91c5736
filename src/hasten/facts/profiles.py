"""What `hasten doctor` measures: a profile of the model, and a profile of a run's steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A module that has parameters or does counted arithmetic itself.

    path, line: of the user's class that holds it; "" and 0 where that is not known.
    sizes: of its matrix product, by what they are: {"in_features": 50, …}.
    """

    name: str  # as in model.named_modules()
    kind: str  # the class's name
    path: str
    line: int
    parameters: int
    sizes: tuple[tuple[str, int], ...]
    is_called: bool
    without_gradient: tuple[str, ...]  # parameters that ask for one and got none, though the layer was called
    flops_share: float  # of the step's counted floating-point operations, 0 to 1
    activation_bytes: int  # kept for the backward pass at the step's peak


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelProfile:
    """steps: that were trained for it. useless_biases: of convolutions, which a batch norm cancels; None where the
    model cannot be traced, for the reason in untraceable."""

    device: str  # "cpu", "cuda:0"
    precision: str  # "float32", "bfloat16", "float16": what matrix products are computed in
    steps: int
    layers: tuple[Layer, ...]
    useless_biases: tuple[str, ...] | None
    untraceable: str
    flops_per_sample: float
    memory_bytes: int  # that the device has
    peak_bytes: int
    activation_bytes: int  # at the peak


LARGER = (4, 16, 64, 256)  # times as large a batch is tried
LITTLE = 2.0  # times as long, for four times the samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Of one optimizer step, with the range in which the windows that were measured lie."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LargerBatch:
    """A step with so many times the batch, its batches there already. loading: seconds of reading one alone."""

    times: int
    step: Seconds
    loading: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NotMeasured:
    """What could not be looked at, for a reason in words."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopCost:
    """What a line in a loop begins, with all that it calls in the user's own functions. operations: in a step; again:
    of those, that begin many times for a batch at the same place in the code and in the same layer; times: how often
    the most frequent does; passes: how often Python comes to the line, None where that is not known. seconds, high,
    timed: as of a line. backward: their share of the backward pass, 0 to 1."""

    operations: int
    again: int
    times: int
    passes: int | None = None
    backward: float
    seconds: float
    high: float
    timed: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of the user's code that steps run through. seconds: of a step that are spent in it and in what it calls
    outside the user's code, as sampled; high: the upper end of their 95 % interval, or what was timed
    where that is more. timed: the least of a few steps in a row; 0 where one of them did not run through it.

    in_a_loop: of its function, as was seen in steps. operations, reads, copies: of tensors in a step, that the line
    begins, in layers that it calls as well; direct: those that it begins itself. copying_seconds: of the copies alone.
    turns: of one in a loop.
    """

    path: str
    line: int
    function: str
    in_loading: bool
    in_a_loop: bool
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
    """What the compiler said of a place in the user's code. times: in the whole look."""

    path: str
    line: int
    why: str
    times: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceUse:
    """Of an accelerator. busy_seconds: of a step, in which a kernel or a copy runs; None where the profiler sees none:
    some systems keep it from looking. retries: of its allocator, in so many steps; reserved_bytes: that it holds at
    the peak; fragmented: the share of what it holds, 0 to 1, that is neither in use nor able to be given back."""

    busy_seconds: float | None
    steps: int
    retries: int
    reserved_bytes: int
    fragmented: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCost:
    """Of one that is saved while the run goes on. stall_seconds: that training stands still for; seconds: until it was
    read back whole. every_seconds: between two, where nobody has said how often; share: of the time, 0 to 1, that they
    take then."""

    bytes: int
    stall_seconds: float
    seconds: float
    every_seconds: float
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RetainedMemory:
    """A step where the C library gives no memory back to the system, and one right before at the same places of the
    data, where it does."""

    kept: Seconds
    returned: Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProfile:
    """together: the steps of the job as they are. waited: of those, until the next batch was there; unwaited: the rest
    of them. computing: steps whose batches are there already; computing_error: seconds by which those of other batches
    may differ; not_free: why no such steps could be taken, "" where they were. loading: reading alone, nothing trained;
    loading_cpu: processor time of that, of this process and its workers.

    larger: of one batch as it is, and by LARGER, as far as those tell how little one more sample takes, or none at
    all; no_larger: why the next one was not tried, larger_failed: what it raised, each "" where
    nothing was in the way.
    checkpoint: what one costs, as a run saves it.
    backward_copying: seconds of copies in the backward passes of a step.
    growth: bytes by which memory grew in each step at least, in all rounds of the second half; None where it did not.
    new_pages: of the host's memory, that this process touches for the first time in a step; page_seconds, page_bytes:
    of one, which is larger than the system's where it maps many at once.
    kept_memory: what it brings that the C library gives none of them back; None where too few are new to make it worth
    measuring, where the plan has it so, and where the library cannot be told.
    others: cores that other processes kept busy meanwhile.
    overhead: ratio of steps with and without a look at the stacks, with its 95 % interval.
    not_counted: why nothing is known of operations or of the seconds of lines, "" where it is.
    graph_breaks: where a compiled model falls back to Python; recompiled: what was compiled again, by its reason.
    """

    device: str
    machine: str
    batch_size: int
    samples: int | None  # of the training data
    workers: int
    reading_cores: int  # that those who read can keep busy: threads one, as only one of them runs Python at a time
    steps_per_epoch: int | None
    planned_steps: int | None
    evaluations_per_epoch: float
    steps: int  # that were taken in all
    together: Seconds
    waited: Seconds
    unwaited: Seconds
    computing: Seconds
    loading: Seconds
    loading_cpu: float
    larger: tuple[LargerBatch, ...]
    no_larger: str
    parts: dict[str, float]  # of a step: data_wait, transfer, forward, backward, optimizer, python
    evaluation_seconds: float | NotMeasured  # 0 where there is none
    checkpoint: CheckpointCost | NotMeasured
    operations: int  # on tensors in a step, forward and backward
    backward_copying: float
    lines: tuple[Line, ...]  # the slowest first
    growth: int | None
    new_pages: float
    page_seconds: float
    page_bytes: float
    kept_memory: RetainedMemory | None
    memory_bytes: int  # that the device has
    free_bytes: int
    overhead: Seconds
    others: float
    graph_breaks: tuple[CompilerNote, ...] = ()
    recompiled: tuple[CompilerNote, ...] = ()
    device_use: DeviceUse | None = None  # of an accelerator alone
    not_counted: str = ""
    computing_error: float = 0.0
    not_free: str = ""
    larger_failed: str = ""

    @property
    def epoch_steps(self) -> int:
        """Of an epoch; where nobody knows its end, of the planned run."""
        return self.steps_per_epoch or self.planned_steps or 1

    @property
    def epoch_seconds(self) -> float:
        """Without its evaluations, where it is not known what one takes."""
        known = 0.0 if isinstance(self.evaluation_seconds, NotMeasured) else self.evaluation_seconds
        return self.epoch_steps * self.together.value + self.evaluations_per_epoch * known
