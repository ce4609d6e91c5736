"""Rare reads of device metrics are proposed for jobs that log often."""

import pytest
import torch
from torch import nn

from hasten.facts.choice import Preserves
from hasten.techniques.contract import No, Yes
from hasten.techniques.device_metrics import SELDOM, TECHNIQUE
from support import laptop, setup_of


def setup_logging(every):
    sample = (torch.randn(8, 6), torch.zeros(8, dtype=torch.long))
    return setup_of(nn.Linear(6, 3), sample, laptop(), log_every=every)


@pytest.mark.parametrize("every", [1, SELDOM - 1])
def test_a_job_that_logs_often_reads_rarely_and_keeps_its_lines(every):
    setup = setup_logging(every)
    assert TECHNIQUE.applies(setup, setup.machine) == Yes()
    (choice,) = TECHNIQUE.candidates(setup, setup.machine)
    assert choice.preserves is Preserves.BITS
    TECHNIQUE.apply(setup, choice)
    assert setup.step.read_every == SELDOM
    assert setup.job.log_every == every


@pytest.mark.parametrize("every", [SELDOM, 500])
def test_a_job_that_logs_rarely_is_refused(every):
    setup = setup_logging(every)
    verdict = TECHNIQUE.applies(setup, setup.machine)
    assert verdict == No(f"the job logs every {every} steps, so the device is rarely read already")
