"""Convolution bias that the following batch norm cancels.

What it finds: Convolutions with a bias, whose output is read by one batch norm in training mode and by
nothing else. `torch.fx` traces the model to find them.

Why it matters: Adding the bias reads a whole activation, and its gradient is a sum over it. Batch norm
subtracts the mean of each channel, and the bias with it, so the bias has no effect.

Fix: Add `conv_bn_bias` to the plan: checkpoints keep the job's own form of the weights. Or write
`bias=False`.

    nn.Sequential(nn.Conv2d(3, 64, 3, bias=False), nn.BatchNorm2d(64))

When to ignore: Pretrained weights contain the bias.

Automatic fix: None.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInModel, ModelProfile, ModelRule, Severity


def check(profile: ModelProfile) -> Iterator[FoundInModel]:
    if profile.useless_biases:
        first, *others = profile.useless_biases
        layer = next((layer for layer in profile.layers if layer.name == first), None)
        more = f" and {len(others)} more" if others else ""
        yield FoundInModel(layer, f"the bias of {first}{more} is canceled by the batch norm after it")


RULE = ModelRule(
    code="H601",
    severity=Severity.SLIGHT,
    fix="add conv_bn_bias to the plan, or pass bias=False",
    technique="conv_bn_bias",
    check=check,
)
