"""The profiles of a job's model and of its running steps, as lines and tables."""

from __future__ import annotations

from hasten.facts.formatting import byte_size
from hasten.facts.profiles import CheckpointCost, DeviceUse, ModelProfile, NotMeasured, RunProfile, Seconds
from hasten.report.display import STEP_PARTS, count, duration, percent, scaled, table

_ROWS = 6  # layers that are shown
_BAR = 24  # columns
_MUCH_ELSE = 0.2  # cores


def run_lines(run: RunProfile) -> list[tuple[str, str]]:
    """Label and text of each line."""
    lines = [
        ("step", f"{_range(run.together)}, of {run.batch_size:,} samples; {run.steps:,} steps were taken"),
        ("loading", f"{_range(run.loading)} alone; a step whose batch is loaded takes {_range(run.computing)}"),
    ]
    if isinstance(run.evaluation_seconds, NotMeasured):
        lines.append(("note", f"the time of an evaluation is unknown: {run.evaluation_seconds.why}"))
    elif run.evaluation_seconds:
        lines.append(("evaluation", duration(run.evaluation_seconds)))
    if run.device_use is not None:
        lines.append(("device", _use(run.device_use, run.computing)))
    if isinstance(run.checkpoint, NotMeasured):
        lines.append(("note", f"no checkpoint could be saved: {run.checkpoint.why}"))
    else:
        lines.append(("checkpoint", _checkpoint(run.checkpoint)))
    than = f"more than {run.larger[-1].times} times this batch" if run.larger else "a larger batch"
    if run.no_larger:
        lines.append(("note", f"{than} was not measured: {run.no_larger}"))
    if run.not_counted:
        lines.append(("note", f"the profile of single lines is incomplete: {run.not_counted}"))
    if run.others > _MUCH_ELSE:
        busy = f"other programs kept {run.others:.2g} cores busy meanwhile"
        lines.append(("note", f"{busy}: profile again when nothing else runs"))
    return lines


def budget_rows(run: RunProfile) -> list[str]:
    """Where the seconds of a step go, as a picture."""
    total = sum(run.parts.values()) or 1.0
    rows = [
        [name, duration(seconds), percent(seconds / total), "█" * round(seconds / total * _BAR)]
        for part, name in STEP_PARTS.items()
        if (seconds := run.parts.get(part))
    ]
    return table(["a step", "takes", "share", ""], rows)


def model_lines(model: ModelProfile) -> list[tuple[str, str]]:
    activations = byte_size(model.activation_bytes)
    lines = [
        ("work", work(model.flops_per_sample, model.uncounted, f", in {model.precision}")),
        ("memory", f"{byte_size(model.peak_bytes)} at the peak, of which activations {activations}"),
    ]
    if model.untraceable:
        lines.append(("note", f"the data flow of the model is unknown: {model.untraceable}"))
    return lines


def work(flops_per_sample: float | None, failed: str, precision: str = "") -> str:
    """Of a sample. failed: the error of what counts it, where it is unknown."""
    if flops_per_sample is None:
        return f"unknown, because torch's FLOP counter fails on this model ({failed})"
    return f"{scaled(flops_per_sample, 'FLOP')} a sample, forward and backward{precision}"


def layer_rows(model: ModelProfile) -> list[str]:
    """The layers with the most arithmetic, and those with the most activations."""
    heaviest = sorted(model.layers, key=lambda layer: (-layer.flops_share, -layer.activation_bytes))[:_ROWS]
    shares = ["unknown" if model.uncounted else percent(layer.flops_share) for layer in heaviest]
    rows = [
        [layer.name, layer.kind, count(layer.parameters), share, byte_size(layer.activation_bytes)]
        for layer, share in zip(heaviest, shares, strict=True)
    ]
    return table(["layer", "is", "parameters", "arithmetic", "activations"], rows)


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
