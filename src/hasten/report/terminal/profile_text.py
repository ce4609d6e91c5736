"""The profiles of a job's model and of its running steps, as lines and tables."""

from __future__ import annotations

from collections.abc import Mapping

from hasten.facts.formatting import byte_size
from hasten.facts.profiles import CheckpointCost, DeviceUse, ModelProfile, NotMeasured, RunProfile, Seconds
from hasten.report.display import count, duration, percent, scaled, table

_ROWS = 6  # layers that are shown
_BAR = 24  # columns
_MUCH_ELSE = 0.2  # cores
_PARTS = {
    "data_wait": "waiting for data",
    "transfer": "copying to the device",
    "forward": "forward pass and loss",
    "backward": "backward pass",
    "optimizer": "update",
    "python": "the loop around them",
}


def run_lines(look: RunProfile) -> list[tuple[str, str]]:
    """Label and text of each line."""
    lines = [
        ("machine", look.machine),
        ("step", f"{_range(look.together)}, of {look.batch_size:,} samples; {look.steps:,} steps were taken"),
        ("loading", f"{_range(look.loading)} alone; a step whose batch is loaded takes {_range(look.computing)}"),
    ]
    if isinstance(look.evaluation_seconds, NotMeasured):
        lines.append(("note", f"what an evaluation takes is not known: {look.evaluation_seconds.why}"))
    elif look.evaluation_seconds:
        lines.append(("evaluation", duration(look.evaluation_seconds)))
    if look.device_use is not None:
        lines.append(("device", _use(look.device_use, look.computing)))
    if isinstance(look.checkpoint, NotMeasured):
        lines.append(("note", f"no checkpoint could be saved: {look.checkpoint.why}"))
    else:
        lines.append(("checkpoint", _checkpoint(look.checkpoint)))
    than = f"more than {look.larger[-1].times} times this batch" if look.larger else "a larger batch"
    if look.no_larger:
        lines.append(("note", f"{than} was not measured: {look.no_larger}"))
    if look.not_counted:
        lines.append(("note", f"what single lines do is not known whole: {look.not_counted}"))
    if look.others > _MUCH_ELSE:
        cores = f"{look.others:.2g}"
        of_them = "core" if cores == "1" else "cores"
        others = f"other programs kept {cores} {of_them} busy meanwhile: look again when nothing else runs"
        lines.append(("note", others))
    overhead = [f"{100 * (each - 1):+.1f} %" for each in (look.overhead.value, look.overhead.low, look.overhead.high)]
    lines.append(("looking", "costs {} of a step ({} to {})".format(*overhead)))
    return lines


def budget_rows(look: RunProfile) -> list[str]:
    """Where the seconds of a step go, as a picture."""
    total = sum(look.parts.values()) or 1.0
    rows = [
        [_PARTS[name], duration(value), percent(value / total), _bar(value / total)] for name, value in _shown(look)
    ]
    return table(["a step", "takes", "share", ""], rows)


def model_lines(look: ModelProfile) -> list[tuple[str, str]]:
    lines = [
        ("work", f"{scaled(look.flops_per_sample, 'FLOP')} a sample, forward and backward, in {look.precision}"),
        (
            "memory",
            f"{byte_size(look.peak_bytes)} at the peak, of which activations {byte_size(look.activation_bytes)}",
        ),
    ]
    if look.untraceable:
        lines.append(("note", f"what flows where is not known: {look.untraceable}"))
    return lines


def layer_rows(look: ModelProfile) -> list[str]:
    """The layers with the most arithmetic, and those with the most activations."""
    heaviest = sorted(look.layers, key=lambda layer: (-layer.flops_share, -layer.activation_bytes))[:_ROWS]
    rows = [
        [layer.name, layer.kind, count(layer.parameters), percent(layer.flops_share), byte_size(layer.activation_bytes)]
        for layer in heaviest
    ]
    return table(["layer", "is", "parameters", "arithmetic", "activations"], rows)


def _shown(look: RunProfile) -> list[tuple[str, float]]:
    parts: Mapping[str, float] = look.parts
    return [(name, parts[name]) for name in _PARTS if parts.get(name)]


def _bar(share: float) -> str:
    return "█" * round(share * _BAR)


def _use(use: DeviceUse, computing: Seconds) -> str:
    kernels = "its kernels could not be timed: the profiler sees none on this system"
    if use.busy_seconds is not None:
        kernels = f"idle for {percent(max(0.0, 1 - use.busy_seconds / computing.value))} of such a step"
    return f"{kernels}; holds {byte_size(use.reserved_bytes)} of memory, {percent(use.fragmented)} of it in pieces"


def _checkpoint(cost: CheckpointCost) -> str:
    return (
        f"{byte_size(cost.bytes)} in {duration(cost.seconds)}, for {duration(cost.stall_seconds)} of which training "
        f"stands still; one in {duration(cost.every_seconds)} is {100 * cost.share:.2g} % of the time"
    )


def _range(seconds: Seconds) -> str:
    return f"{duration(seconds.value)} ({duration(seconds.low)} to {duration(seconds.high)})"
