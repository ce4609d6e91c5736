"""Flushing is offered where the processor computes and has the mode."""

import pytest
import torch
from torch import nn

from hasten.techniques.contract import No, Yes
from hasten.techniques.flush_denormals import TECHNIQUE
from support import laptop, setup_of


def setup_on(device, *features):
    machine = laptop(processor_features=frozenset(features))
    setup = setup_of(nn.Linear(6, 3), (torch.randn(8, 6), torch.zeros(8, dtype=torch.long)), machine)
    setup.device = torch.device(device)
    return setup


@pytest.mark.parametrize("features", [("sse2", "pni"), ("fp", "asimd"), ()], ids=["x86", "arm", "unnamed"])
def test_it_applies_where_the_mode_exists_or_is_unknown(features):
    setup = setup_on("cpu", *features)
    assert TECHNIQUE.applies(setup, setup.machine) == Yes()
    TECHNIQUE.apply(setup, *TECHNIQUE.candidates(setup, setup.machine))
    assert setup.process.flush_denormals is True


def test_a_processor_without_the_mode_is_refused():
    setup = setup_on("cpu", "sse2")
    verdict = TECHNIQUE.applies(setup, setup.machine)
    assert isinstance(verdict, No)
    assert "SSE3" in verdict.reason


def test_a_job_on_an_accelerator_is_refused():
    setup = setup_on("cuda", "pni")
    verdict = TECHNIQUE.applies(setup, setup.machine)
    assert isinstance(verdict, No)
    assert "cuda" in verdict.reason
