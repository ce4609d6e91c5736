"""Device meshes for a training job: what the job needs, and the estimated cost of each mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hasten.facts.choice import Choice


class Sharding(StrEnum):
    """What data-parallel ranks hold: replicas, or shards."""

    NONE = "none"
    ZERO2 = "zero2"
    ZERO3 = "zero3"


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes: those on each rank of a tensor group, and those that the ranks divide."""

    whole: float = 0.0
    divided: float = 0.0

    def over(self, tensor: int) -> float:
        """On one of `tensor` ranks."""
        return self.whole + self.divided / tensor

    @property
    def total(self) -> float:
        return self.whole + self.divided

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.whole + other.whole, self.divided + other.divided)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One block that a model repeats, or everything around the blocks.

    weights, gradients, state: bytes, counted; state is the optimizers'.
    root: bytes of weights that `shard` gathers once, for the whole of a forward and backward pass.
    unit: bytes of weights in the largest layer that `shard` gathers by itself, with those within it.
    fixed, per_sample: bytes that a forward pass saves for its backward pass: in all, and for each sample.
    recomputed: bytes per sample that exist again in this part's backward pass, where it recomputes.
    summed: bytes per sample of activations that tensor ranks sum, forward and backward together.
    """

    name: str
    weights: Amount = field(default_factory=Amount)
    gradients: Amount = field(default_factory=Amount)
    state: Amount = field(default_factory=Amount)
    root: Amount = field(default_factory=Amount)
    unit: Amount = field(default_factory=Amount)
    fixed: Amount = field(default_factory=Amount)
    per_sample: Amount = field(default_factory=Amount)
    recomputed: Amount = field(default_factory=Amount)
    summed: Amount = field(default_factory=Amount)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelNeeds:
    """What a job needs of devices, counted and measured.

    parameters: counted. flops_per_sample: forward and backward, counted.
    batch_size: samples of one optimizer step, over all devices.
    divisible: numbers that the tensor ranks must divide, by name; none where no layer can be divided.
    border_bytes: per sample, passed from one repeated block to the next.
    buffer_bytes: of the model's buffers, on each device.
    short_weights: whether some trained weights have 16 bits.
    how: measured on shapes alone, or on this host and why.
    """

    parameters: int
    batch_size: int
    around: Part
    blocks: tuple[Part, ...]
    divisible: tuple[tuple[str, int], ...]
    border_bytes: float
    buffer_bytes: int
    short_weights: bool
    flops_per_sample: float
    how: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """data × tensor × pipeline devices. shard: what the `data` ranks hold."""

    data: int
    tensor: int
    pipeline: int
    shard: Sharding = Sharding.NONE

    @property
    def devices(self) -> int:
        return self.data * self.tensor * self.pipeline

    def __str__(self) -> str:
        parts = "" if self.shard is Sharding.NONE else f" ({self.shard.value})"
        return f"data {self.data}{parts} × tensor {self.tensor} × pipeline {self.pipeline}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes on the device that holds most.

    gathered: weights and gradients that are temporarily whole, beside their shards.
    buckets: gradient buckets of replicas.
    """

    weights: float
    gathered: float
    gradients: float
    buckets: float
    state: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.gathered + self.gradients + self.buckets + self.state + self.activations


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshCost:
    """What a mesh costs, estimated.

    microbatch_size: samples in one forward and backward pass of one device. microbatches: of a step.
    sent: bytes that a device sends in a step, at most, by kind.
    communication_seconds: for these, without any overlap: an upper bound.
    bubble: the share of a step, 0 to 1, in which a pipeline stage is idle.
    compute_seconds: of the arithmetic, at the given or assumed speed.
    """

    mesh: Mesh
    microbatch_size: int
    microbatches: int
    memory: Memory
    sent: Mapping[str, float]
    communication_seconds: float
    bubble: float
    compute_seconds: float
    fits: bool

    @property
    def sent_bytes(self) -> float:
        return sum(self.sent.values())

    @property
    def step_seconds(self) -> float:
        """Compute and communication without overlap, and the pipeline's idle time."""
        return (self.communication_seconds + self.compute_seconds) / (1 - self.bubble)


@dataclass(frozen=True, kw_only=True, slots=True)
class Illegal:
    mesh: Mesh
    reason: str


MARGIN = 0.1  # of a device's memory, for what the estimate does not count
FLOPS = 1e14  # per second, assumed of a device


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """
    memory_bytes, bytes_per_second, flops_per_second: of one device: its memory, what it sends, what it computes.
    per_machine: devices.
    margin: share of the memory to leave free.
    """

    devices: int
    memory_bytes: float
    bytes_per_second: float
    per_machine: int = 8
    flops_per_second: float = FLOPS
    margin: float = MARGIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Meshes:
    """legal: best first. choices: the plan entries for the best mesh."""

    needs: ModelNeeds
    cluster: Cluster
    legal: tuple[MeshCost, ...]
    illegal: tuple[Illegal, ...]
    choices: tuple[Choice, ...] = ()

    @property
    def best(self) -> MeshCost | None:
        """The first that fits without pipeline stages, whose small microbatches the estimate does not price; else the
        first with stages; None where none fits."""
        fitting = [each for each in self.legal if each.fits]
        return next((each for each in fitting if each.mesh.pipeline == 1), next(iter(fitting), None))
