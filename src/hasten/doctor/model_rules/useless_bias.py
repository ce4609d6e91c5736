"""A bias that the batch norm after it subtracts again.

What it finds: Convolutions with a bias whose output is read by one batch norm in training mode and by nothing else, as
torch.fx traces the model.

Why it costs: Adding the bias reads a whole activation, and its gradient is a sum over it. Batch norm subtracts each
channel's mean, and the bias with it, so neither changes anything.

When to ignore it: Where pretrained weights have this form.

Fix: Plan `conv_bn_bias`, which keeps the job's own form of weights in checkpoints; or write `bias=False`.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInModel, ModelProfile, ModelRule


def check(profile: ModelProfile) -> Iterator[FoundInModel]:
    if profile.useless_biases:
        first, *others = profile.useless_biases
        layer = next((layer for layer in profile.layers if layer.name == first), None)
        more = f" and of {len(others)} more" if others else ""
        yield FoundInModel(layer, f"the bias of {first}{more} is subtracted again by the batch norm after it")


RULE = ModelRule(
    code="H601",
    fix="plan conv_bn_bias, or write bias=False",
    technique="conv_bn_bias",
    check=check,
)
