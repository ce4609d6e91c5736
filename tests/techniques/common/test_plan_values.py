"""A value or option that makes no sense is refused with what to write instead."""

from __future__ import annotations

import pytest
from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.techniques import ALL
from support import setup_of

TECHNIQUES = {technique.name: technique for technique in ALL}
TRUE = [
    *("device_transform", "persistent_workers", "pin_memory", "channels_last", "conv_bn_bias"),
    *("cudnn_autotune", "flush_denormals"),
]
WHOLE = {
    "device_prefetch": "how many batches to copy ahead: a whole number, 1 to 16",
    "threads": "the number of compute threads: a whole number, 1 or more",
    "batch_size": "the number of samples in a step: a whole number, 1 or more",
    "evaluation_batch": "the number of samples in a batch: a whole number, 1 or more",
    "prefetch": "how many batches each worker reads ahead: a whole number, 1 to 64",
    "device_metrics": "the number of steps between two reads: a whole number, 1 or more",
}


def refusal(name, value, **options):
    with pytest.raises(PlanError) as caught:
        TECHNIQUES[name].apply(setup_of(nn.Linear(6, 3), None), Choice(technique=name, value=value, options=options))
    assert caught.value.where == name
    return caught.value.fix


@pytest.mark.parametrize("name", TRUE)
def test_true_is_the_only_value(name):
    for value in (False, 1, "on"):
        assert refusal(name, value) == "write true without options, or remove the line"
    assert refusal(name, True, fast=True).startswith("write true")


@pytest.mark.parametrize("name", WHOLE)
def test_a_number_is_whole_positive_and_without_options(name):
    for value in (0, -8, True, 16.0, "double"):
        assert refusal(name, value) == f"write {WHOLE[name]}, without options"
    assert refusal(name, 4, fast=True).startswith("write ")


@pytest.mark.parametrize(("name", "most"), [("device_prefetch", 16), ("prefetch", 64)])
def test_a_number_above_the_limit_is_refused(name, most):
    assert f"1 to {most}" in refusal(name, most + 1)
