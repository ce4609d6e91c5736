"""Which modules of a script compute in float64, where it is the truth that gradients are judged by."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hasten.scripts.proving.gradient_steps import compute_in_float64


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_module_of_torchscript_with_a_name_keeps_its_dtype():
    frozen = torch.jit.freeze(torch.jit.script(nn.Linear(3, 2).eval()))
    model, critic, rows = nn.Linear(3, 2), nn.Linear(2, 1), torch.ones(4, 3)
    compute_in_float64(model)
    assert critic(model(rows)).dtype == torch.float64
    assert frozen(rows).dtype == torch.float32
