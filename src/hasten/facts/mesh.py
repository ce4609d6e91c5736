"""How devices of a cluster may divide a training job, what the job needs for that, and what each way costs on paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hasten.facts.choice import Choice


class Sharding(StrEnum):
    """What ranks that train on different samples hold: replicas, or parts."""

    NONE = "none"
    ZERO2 = "zero2"
    ZERO3 = "zero3"


@dataclass(frozen=True, slots=True)
class Amount:
    """Of something in bytes: what each rank of a tensor group has by itself, and what they divide."""

    whole: float = 0.0
    divided: float = 0.0

    def over(self, tensor: int) -> float:
        """On one of so many ranks."""
        return self.whole + self.divided / tensor

    @property
    def total(self) -> float:
        return self.whole + self.divided

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.whole + other.whole, self.divided + other.divided)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One block that a model repeats, or all that lies around these.

    weights, gradients, state: bytes, counted; state is the optimizers'.
    root: bytes of weights that `shard` gathers once, for the whole of a forward and backward pass.
    unit: bytes of weights in the largest layer that `shard` gathers by itself, with those within it.
    fixed, per_sample: bytes that one forward pass keeps for its backward pass, whatever its samples, and for each.
    recomputed: bytes a sample that come back while this part runs backward, where it computes again.
    summed: bytes a sample of activations that tensor ranks sum, forward and backward together.
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
    """What a job needs of devices, counted and measured where it was looked at.

    parameters: counted. flops_per_sample: forward and backward, counted.
    batch_size: samples of one optimizer step, over all devices.
    divisible: what a number of tensor ranks must divide, by name; none where no layer can be divided.
    border_bytes: a sample of what flows from one repeated block into the next.
    buffer_bytes: of the model's buffers, which each device holds.
    short_weights: whether some of the weights that are trained have 16 bits.
    how: on shapes alone, or on this host and why.
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
    """data × tensor × pipeline devices. shard says what the `data` ranks hold."""

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

    gathered: weights and gradients that are whole for a while, beside the parts. buckets: copies of gradients from
    which replicas send them.
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

    microbatch_size: samples in one forward and backward pass of one device; microbatches: of those in a step.
    sent: bytes that a device sends in a step, at most, by what they are.
    communication_seconds: for these, one after the other, beside no arithmetic: an upper bound.
    bubble: the share of a step, 0 to 1, in which a stage of the pipeline has nothing to do.
    compute_seconds: of the arithmetic, at the speed that was said or assumed.
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
        """Work and communication, one after the other, and as long again as a pipeline stands idle."""
        return (self.communication_seconds + self.compute_seconds) / (1 - self.bubble)


@dataclass(frozen=True, kw_only=True, slots=True)
class Illegal:
    mesh: Mesh
    reason: str


MARGIN = 0.1  # of a device's memory, for what is not counted
FLOPS = 1e14  # a second, that a device is taken to reach where nobody says it


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """memory_bytes: of one device. bytes_per_second: that it sends. flops_per_second: that it reaches. per_machine:
    devices of one machine. margin: share of the memory to leave free."""

    devices: int
    memory_bytes: float
    bytes_per_second: float
    per_machine: int = 8
    flops_per_second: float = FLOPS
    margin: float = MARGIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Meshes:
    """legal: best first. choices: the entries of a plan that make a run the best of them."""

    needs: ModelNeeds
    cluster: Cluster
    legal: tuple[MeshCost, ...]
    illegal: tuple[Illegal, ...]
    choices: tuple[Choice, ...] = ()

    @property
    def best(self) -> MeshCost | None:
        """The first without stages, whose microbatches are smaller than an estimate takes account of; one with stages
        where no other fits, and None where none does."""
        fitting = [each for each in self.legal if each.fits]
        return next((each for each in fitting if each.mesh.pipeline == 1), next(iter(fitting), None))
