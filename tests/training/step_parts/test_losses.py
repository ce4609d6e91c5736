"""What a loss function raises, told with the batch it was given."""

import pytest
import torch
from torch.nn import functional

import hasten
from hasten.entry import prepare
from hasten.errors import JobError, UserCodeFailed
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


def each(prediction, target):
    return functional.cross_entropy(prediction, target, reduction="none")


@pytest.mark.parametrize(
    ("returned", "fix"),
    [
        (each, "reduce it to a scalar: .mean(), or return hasten.Loss(losses.sum(), len(losses))"),
        (lambda p, y: each(p, y)[:1], "reduce it to a scalar: .mean(), or return hasten.Loss"),
        (lambda p, y: hasten.Loss(each(p, y), len(y)), "hasten.Loss(losses.sum(), len(losses))"),
        (lambda p, y: hasten.Loss(each(p, y).sum(), len(y), auxiliary=each(p, y)), ".mean()"),
    ],
    ids=["a vector", "one number", "a total", "an auxiliary term"],
)
def test_what_is_no_scalar_is_refused_with_the_way_to_a_mean(returned, fix):
    job = small_job(loss=lambda model, batch: returned(model(batch[0]), batch[1]))
    with pytest.raises(JobError) as caught:
        hasten.train(job, receivers=[])
    assert fix in caught.value.fix
