"""What a look at a job's model tells: its layers, and what a few training steps did with them."""

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
class ModelLook:
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
