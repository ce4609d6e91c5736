"""Remove the bias of a convolution that is followed directly by a batch norm.

What it does: finds every convolution whose output goes to one batch norm and nowhere else. It removes the bias and
subtracts it from the batch norm's running mean. Batch norm subtracts the mean of each channel, so a constant that is
added to a channel cancels. Saved weights contain the bias again, as zeros.

Why it is faster: it saves an addition over the whole activation, and a sum over it in the backward pass.

When it loses: never by much. It gains little where the convolution's kernel adds the bias itself.

What it changes: rounding only ("equal up to rounding"). The gradient of the bias was rounding noise, which no longer
enters the gradient norm. Weight decay changed the bias without effect.

Limits: torch.fx must be able to trace the model. The technique skips frozen batch norms and those in evaluation mode,
outputs that are also read elsewhere (a skip connection), layers that are used twice, and parametrized or subclassed
layers. Inputs are assumed to be batched.

Example:

    [[choice]]
    technique = "conv_bn_bias"
    value = true
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from hasten.errors import Misconfigured
from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.module_graph import Flow, trace
from hasten.techniques.common.plan_values import check_true
from hasten.techniques.contract import No, Technique, Yes, proposing
from hasten.techniques.setup import Setup

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
NORM_OF: dict[type[nn.Module], type[nn.Module]] = {
    **dict.fromkeys((nn.Conv1d, nn.ConvTranspose1d), nn.BatchNorm1d),
    **dict.fromkeys((nn.Conv2d, nn.ConvTranspose2d), nn.BatchNorm2d),
    **dict.fromkeys((nn.Conv3d, nn.ConvTranspose3d), nn.BatchNorm3d),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A convolution and the batch norm that is the only reader of its output, by their names in the model."""

    convolution: str
    batch_norm: str
    channels: int  # of what passes between them: the length of the bias


def find_useless_biases(model: nn.Module) -> list[Pair]:
    """Pairs whose bias changes nothing but rounding. Raises Misconfigured when the model cannot be traced."""
    flows = trace(model)
    names = {module: name for name, module in model.named_modules()}
    return [
        Pair(convolution=names[convolution], batch_norm=names[norm], channels=convolution.out_channels)
        for convolution, norm in flows[0].sole_reader.items()
        if isinstance(convolution, Convolution) and _cancels(convolution, norm)
        if all(_agrees(flow, convolution, norm) for flow in flows)
    ]


def remove_biases(model: nn.Module, pairs: Sequence[Pair]) -> dict[str, nn.Parameter]:
    """Remove the biases of `pairs` in place and return them by name. The state_dict loses their keys."""
    removed: dict[str, nn.Parameter] = {}
    for pair in pairs:
        convolution, mean = model.get_submodule(pair.convolution), model.get_submodule(pair.batch_norm).running_mean
        bias = removed[f"{pair.convolution}.bias"] = convolution.get_parameter("bias")
        if isinstance(mean, Tensor):
            mean.sub_(bias.detach())
        convolution.register_parameter("bias", None)
    return removed


def with_biases(weights: Mapping[str, Tensor], pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """The state_dict in the form before `remove_biases`; its biases are zero, so the model evaluates the same."""
    biases: dict[str, Tensor] = {}
    for pair in pairs:
        weight = next(tensor for name, tensor in weights.items() if name.startswith(f"{pair.convolution}.weight"))
        biases[f"{pair.convolution}.bias"] = weight.new_zeros(pair.channels)
    return {**weights, **biases}


def _cancels(convolution: Convolution, norm: nn.Module) -> bool:
    """Whether the batch norm subtracts in training what the bias adds to a channel."""
    matching = type(convolution) in NORM_OF and type(norm) in (NORM_OF[type(convolution)], nn.SyncBatchNorm)
    frozen = not norm.training or not all(parameter.requires_grad for parameter in norm.parameters())
    return convolution.bias is not None and matching and not frozen


def _agrees(flow: Flow, convolution: Convolution, norm: nn.Module) -> bool:
    """Whether a graph contains both or neither of the pair."""
    absent = convolution not in flow.called and norm not in flow.called
    return absent or flow.sole_reader.get(convolution) is norm


def applies(setup: Setup) -> Yes | No:
    try:
        pairs = find_useless_biases(setup.model)
    except Misconfigured as error:
        return No(error.what)
    return Yes() if pairs else No("no convolution with a bias feeds one trained batch norm and nothing else")


def apply(setup: Setup, choice: Choice) -> None:
    check_true(choice)
    pairs = find_useless_biases(setup.model)
    setup.optimizer.removed |= remove_biases(setup.model, pairs)
    setup.to_job_weights.append(lambda weights: with_biases(weights, pairs))
    setup.notices.append(
        f"{len(pairs)} convolution biases that a batch norm cancels were removed: the model computes the same; weight "
        "decay changed them without effect, and their gradients were rounding noise in the gradient norm"
    )


TECHNIQUE = Technique(
    name="conv_bn_bias",
    stage=Stage.MODEL,
    treats=Symptom.SLOW_CONVOLUTION,
    values="true",
    costs=("optimizer groups lose parameters", "weights are converted when they are saved"),
    source="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    applies=applies,
    candidates=proposing("conv_bn_bias", Preserves.ROUNDING, True),
    apply=apply,
)
