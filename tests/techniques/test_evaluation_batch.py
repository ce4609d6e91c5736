"""Evaluation's batch grows; training's stays."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.techniques.contract import No
from hasten.techniques.evaluation_batch import TECHNIQUE
from support import laptop, setup_of

ROWS = (torch.randn(8, 6), torch.zeros(8, dtype=torch.long))


def setup_with(**job):
    return setup_of(nn.Linear(6, 3), ROWS, laptop(), **job)


def offered(setup):
    return [choice.value for choice in TECHNIQUE.candidates(setup, setup.machine)]


def test_multiples_of_the_training_batch_are_tried():
    assert offered(setup_with(valid=ROWS, batch_size=12)) == [24, 48, 96]


def test_a_job_without_valid_data_has_nothing_to_evaluate():
    setup = setup_with(valid=None)
    assert TECHNIQUE.applies(setup, setup.machine) == No("the job has no valid data, so nothing is evaluated")


def test_a_loader_without_a_batch_size_is_refused_with_the_field_to_write():
    loader = DataLoader(TensorDataset(*ROWS), batch_size=None)
    setup = setup_with(train=loader, valid=ROWS, batch_size=None)
    verdict = TECHNIQUE.applies(setup, setup.machine)
    assert isinstance(verdict, No)
    assert "Job.batch_size" in verdict.reason


def test_only_evaluation_changes():
    setup = setup_with(valid=ROWS)
    TECHNIQUE.apply(setup, TECHNIQUE.candidates(setup, setup.machine)[0])
    assert setup.evaluation.batch_size == 16
    assert setup.job.batch_size == 8
    assert setup.step.microbatch_size is None
