"""What a loss function raises, told with the batch it was given."""

import pytest
import torch

from hasten.entry import prepare
from hasten.errors import UserCodeFailed
from hasten.training.failures.as_failure import as_failure
from hasten.training.step_parts.losses import total_of
from hasten.training.step_parts.supervised import supervised
from support import small_job


def test_an_error_of_torch_inside_the_loss_is_the_users_and_names_the_batch():
    rows = torch.randn(40, 5), torch.zeros(40, dtype=torch.long)  # the model takes six columns
    job = small_job(train=rows, loss=supervised(torch.nn.functional.cross_entropy))
    with prepare(job) as run, pytest.raises(RuntimeError) as raised:
        run.step(next(run.batches()))
    failure = as_failure(raised.value)
    assert isinstance(failure, UserCodeFailed)
    assert "float32 [8, 5], int64 [8]" in str(failure) or "float32 [8, 5]" in "".join(raised.value.__notes__)


@pytest.mark.trap(7)
def test_the_sum_behind_a_mean_of_sixteen_bits_does_not_overflow():
    assert total_of(torch.tensor(10.0, dtype=torch.float16), samples=8192).item() == 81920.0
    assert total_of(torch.tensor(10.0, dtype=torch.float64), samples=3).dtype is torch.float64
