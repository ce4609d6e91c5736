"""cuDNN autotuning applies to convolutions on CUDA only."""

import pytest
import torch
from torch import nn

from hasten.techniques.contract import No, Yes
from hasten.techniques.cudnn_autotune import TECHNIQUE
from support import laptop, setup_of


def setup_on(device, model):
    setup = setup_of(model, (torch.randn(2, 3, 8, 8), torch.zeros(2, dtype=torch.long)), laptop())
    setup.device = torch.device(device)
    return setup


@pytest.mark.parametrize("model", [nn.Conv1d(3, 4, 3), nn.Sequential(nn.ConvTranspose2d(3, 4, 3)), nn.Conv3d(3, 4, 3)])
def test_it_applies_to_every_kind_of_convolution_on_cuda(model):
    setup = setup_on("cuda", model)
    assert TECHNIQUE.applies(setup, setup.machine) == Yes()
    TECHNIQUE.apply(setup, *TECHNIQUE.candidates(setup, setup.machine))
    assert setup.process.cudnn_benchmark is True


def test_without_cuda_it_is_refused_with_the_device():
    setup = setup_on("cpu", nn.Conv2d(3, 4, 3))
    assert TECHNIQUE.applies(setup, setup.machine) == No("cuDNN runs on CUDA devices; this job runs on cpu")


def test_without_a_convolution_it_is_refused():
    setup = setup_on("cuda", nn.Linear(3, 4))
    assert TECHNIQUE.applies(setup, setup.machine) == No("the model has no convolution")
