"""A loss that is taken for a mean and is a sum is warned about, once; a mean in any form is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hasten
from hasten.errors import JobError
from hasten.facts.events import Noticed
from hasten.training.reporting.logs import Collected
from support import small_job

Outcome = Callable[[Tensor, Tensor], Any]  # (prediction, target), of shapes (8, 3) and (8,) -> what the loss returns


def notices(loss: Any, plan: Any = None, **changes: Any) -> list[str]:
    events = Collected()
    hasten.train(small_job(loss=loss, **changes), plan, receivers=[events])
    return [each.text for each in events.events if isinstance(each, Noticed) and "mean belongs" in each.text]


def of(outcome: Outcome) -> Any:
    return lambda model, batch: outcome(model(batch[0]), batch[1])


def each(prediction: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(prediction, target, reduction="none")


def one_hot(target: Tensor) -> Tensor:
    return F.one_hot(target, 3).float()


SUMS: dict[str, Outcome] = {
    "what was advised": lambda p, y: each(p, y).sum(),
    "torch.sum": lambda p, y: torch.sum(each(p, y)),
    "over a dimension": lambda p, y: each(p, y).sum(0),
    "cross-entropy": partial(F.cross_entropy, reduction="sum"),
    "a module": nn.CrossEntropyLoss(reduction="sum"),
    "smoothed labels": partial(F.cross_entropy, reduction="sum", label_smoothing=0.1),
    "squares": lambda p, y: F.mse_loss(p, one_hot(y), reduction="sum"),
    "absolute values": lambda p, y: F.l1_loss(p, one_hot(y), reduction="sum"),
    "binary": lambda p, y: F.binary_cross_entropy_with_logits(p, one_hot(y), reduction="sum"),
    "divergence": lambda p, y: F.kl_div(p.log_softmax(-1), one_hot(y), reduction="sum"),
    "written out": lambda p, y: -p.log_softmax(-1).gather(1, y[:, None]).sum(),
    "in another dtype": lambda p, y: each(p, y).sum().double(),
    "tokens": lambda p, y: F.cross_entropy(p.repeat(5, 1), y.repeat(5), reduction="sum"),
    "tokens, each": lambda p, y: F.cross_entropy(p.repeat(5, 1), y.repeat(5), reduction="none").sum(),
    "two of them": lambda p, y: F.cross_entropy(p, y, reduction="sum") + F.mse_loss(p, one_hot(y), reduction="sum"),
    "a mean beside it": lambda p, y: each(p, y).sum() + p.square().mean(),
}


@pytest.mark.parametrize("form", SUMS)
def test_a_sum_in_place_of_a_mean_is_warned_about_once(form: str):
    (said,) = notices(of(SUMS[form]))
    assert "Return losses.mean(), or hasten.Loss(losses.sum(), len(losses))" in said


@pytest.mark.parametrize("microbatch", [2, 4])
def test_it_is_seen_in_microbatches(microbatch: int):
    assert len(notices(of(SUMS["what was advised"]), hasten.make_plan(microbatch=microbatch))) == 1


def test_it_is_seen_under_autocast():
    assert len(notices(of(SUMS["cross-entropy"]), hasten.make_plan(precision="bf16"))) == 1


def test_it_is_seen_in_a_function_that_is_given_to_supervised():
    assert len(notices(hasten.supervised(lambda p, y: F.cross_entropy(p, y, reduction="sum")))) == 1
    assert len(notices(hasten.supervised(lambda p, y: each(p, y).sum()))) == 1


@pytest.mark.parametrize("loss", [partial(F.cross_entropy, reduction="sum"), nn.CrossEntropyLoss(reduction="sum")])
def test_supervised_refuses_a_loss_that_says_that_it_sums(loss: Any):
    with pytest.raises(JobError, match="reduction='sum'"):
        hasten.supervised(loss)


MEANS: dict[str, Outcome] = {
    "cross-entropy": F.cross_entropy,
    "smoothed labels": partial(F.cross_entropy, label_smoothing=0.1),
    "class weights": partial(F.cross_entropy, weight=torch.tensor([1.0, 2.0, 3.0])),
    "each, then the mean": lambda p, y: each(p, y).mean(),
    "divided": lambda p, y: each(p, y).sum() / len(y),
    "multiplied": lambda p, y: each(p, y).sum() * (1 / len(y)),
    "a mask": lambda p, y: (each(p, y) * (y > 0)).sum() / (y > 0).sum().clamp(min=1),
    "weights that sum to one": lambda p, y: (each(p, y) * torch.full((8,), 1 / 8)).sum(),
    "each divided, then the sum": lambda p, y: (each(p, y) / len(y)).sum(),
    "eight tasks": lambda p, y: torch.stack([F.cross_entropy(p, y)] * 8).sum(),
    "the mean of sums over features": lambda p, y: F.mse_loss(p, one_hot(y), reduction="none").sum(1).mean(),
    "the sum of means over samples": lambda p, y: F.mse_loss(p, one_hot(y), reduction="none").mean(0).sum(),
    "such a sum of as many features as samples": lambda p, y: p.repeat(1, 8)[:, :8].square().mean(0).sum(),
    "batchmean": lambda p, y: F.kl_div(p.log_softmax(-1), one_hot(y), reduction="batchmean"),
    "two terms": lambda p, y: F.cross_entropy(p, y) + 0.1 * p.square().mean(),
    "in another dtype": lambda p, y: F.cross_entropy(p, y).double(),
    "between samples": lambda p, y: F.cross_entropy(F.normalize(p) @ F.normalize(p).T / 0.1, torch.arange(8)),
    "a total with its count": lambda p, y: hasten.Loss(each(p, y).sum(), len(y)),
    "a total with a counted tensor": lambda p, y: hasten.Loss(each(p, y).sum(), (y >= 0).sum()),
    "a mean made a total": lambda p, y: hasten.Loss(F.cross_entropy(p, y) * len(y), len(y)),
}


@pytest.mark.parametrize("form", MEANS)
def test_no_mean_is_warned_about(form: str):
    assert notices(of(MEANS[form])) == []


def test_a_sum_over_weights_as_a_term_is_not_warned_about():
    weights = nn.Linear(6, 8, bias=False)  # as many rows as a batch has samples

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = weights, nn.Linear(8, 3)

        def forward(self, rows: Tensor) -> Tensor:
            return self.last(self.first(rows))

    def loss(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1]) + (1e-4 * model.first.weight.square()).sum()

    assert notices(loss, model=Two) == []


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(), lambda p, y: F.cross_entropy(p, y)])
def test_what_supervised_makes_of_a_mean_is_not_warned_about(loss: Any):
    assert notices(hasten.supervised(loss)) == []


def test_a_batch_of_one_sample_says_nothing():
    assert notices(of(SUMS["what was advised"]), batch_size=1, max_steps=3, epochs=None) == []


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
def test_the_advice_for_what_is_no_scalar_gives_a_mean(returned: Outcome, fix: str):
    with pytest.raises(JobError) as caught:
        hasten.train(small_job(loss=of(returned)), receivers=[])
    assert fix in caught.value.fix


def test_the_advice_trains_as_a_mean_does():
    def weights(outcome: Outcome) -> dict[str, Tensor]:
        return dict(hasten.train(small_job(loss=of(outcome)), receivers=[]).weights)

    wanted = weights(F.cross_entropy)
    for advised in (lambda p, y: each(p, y).mean(), lambda p, y: hasten.Loss(each(p, y).sum(), len(each(p, y)))):
        found = weights(advised)
        assert all(torch.allclose(found[name], wanted[name], rtol=1e-5) for name in wanted)
