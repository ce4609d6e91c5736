"""Evaluation: exact at any batch size, and without a trace."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

from hasten.errors import DataFailed
from hasten.facts.job import Loss
from hasten.facts.ranks import ALONE, Ranks
from hasten.parallel.grid import Grid
from hasten.parallel.strategy import Single
from hasten.techniques.setup import StepOptions
from hasten.training.evaluate import Evaluator, Part
from hasten.training.step import Step
from hasten.training.step_parts.supervised import supervised

CPU = torch.device("cpu")
FEATURES = torch.randn(23, 5, generator=torch.Generator().manual_seed(0))
TARGET = torch.randint(0, 4, (23,), generator=torch.Generator().manual_seed(1))


def batches_of(features=FEATURES, target=TARGET):
    def batches(size):
        for piece in zip(features.split(size), target.split(size), strict=True):
            yield piece, len(piece[1])

    return batches


def evaluator(model, loss=None, *, metrics=None, batches=None, batch_size=8, autocast=None, ranks=ALONE):
    return Evaluator(
        model,
        loss or supervised(functional.cross_entropy),
        metrics or {},
        batches or batches_of(),
        batch_size,
        device=CPU,
        autocast=autocast,
        strategy=Single(CPU, Grid(data=ranks)),
    )


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))


@pytest.mark.trap(44)
@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_loss_and_metric_are_those_of_all_samples_at_any_batch_size(batch_size):
    model = network()
    found = evaluator(model, metrics={"accuracy": MulticlassAccuracy(4, average="micro")}, batch_size=batch_size)()
    model.eval()
    with torch.no_grad():
        prediction = model(FEATURES)
    assert found.results["loss"] == pytest.approx(functional.cross_entropy(prediction, TARGET).item(), rel=1e-6)
    assert found.results["accuracy"] == pytest.approx((prediction.argmax(1) == TARGET).float().mean().item())


@pytest.mark.trap(30)
@pytest.mark.trap(31)
def test_an_evaluation_leaves_buffers_modes_and_randomness_as_they_were():
    model = network()
    model[1].eval()  # a frozen batch norm stays frozen, and everything else in training mode
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    before_random = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    noisy = supervised(functional.cross_entropy)
    evaluator(
        model,
        lambda model, batch: noisy(model, (batch[0] + torch.rand(()) + np.random.rand() + random.random(), batch[1])),
    )()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(before_random[0], torch.get_rng_state())
    assert before_random[1:] == (np.random.get_state()[1].tolist(), random.getstate())


@pytest.mark.trap(44)
@pytest.mark.parametrize("batch_size", [7, 23])
def test_an_auxiliary_term_is_a_mean_over_all_samples_at_any_batch_size(batch_size):
    def loss(model, batch):
        prediction = model(batch[0])
        total = functional.cross_entropy(prediction, batch[1], reduction="sum")
        return Loss(total, len(batch[1]), prediction.square().mean(dim=1).mean())

    model = network()
    found = evaluator(model, loss, batch_size=batch_size)().results["loss"]
    with torch.no_grad():
        prediction = model.eval()(FEATURES)
    wanted = functional.cross_entropy(prediction, TARGET) + prediction.square().mean()
    assert found == pytest.approx(wanted.item(), rel=1e-6)


class RemembersPositions(nn.Module):
    """Caches a table of positions on first use, as rotary embeddings do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 4)
        self.table = None
        self.tables: dict[str, torch.Tensor] = {}
        self.listed: list[tuple[torch.Tensor, int]] = []
        self.register_buffer("buffered", None)

    def forward(self, features):
        if self.table is None:
            self.table = torch.ones(4) + features.detach().mean() * 0
            self.buffered = torch.ones(4) + features.detach().mean() * 0
            self.tables["of positions"] = self.table * 1
            self.listed.append((self.table * 1, 4))
        return self.linear(features) * self.table * self.buffered * self.tables["of positions"] * self.listed[0][0]


@pytest.mark.trap(45)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_tensors_kept_from_an_evaluation_can_be_trained_with(autocast):
    model = RemembersPositions()
    evaluator(model, autocast=autocast)()
    step = Step(
        model,
        supervised(functional.cross_entropy),
        [torch.optim.SGD(model.parameters(), lr=0.1)],
        StepOptions(autocast=autocast),
    )
    step.accumulate((FEATURES, TARGET), 23)
    step.update()
    assert step.skips.applied == 1


@pytest.mark.trap(13)
def test_training_after_an_evaluation_under_autocast_still_reaches_the_weights():
    model = nn.Linear(5, 4)
    loss = supervised(functional.cross_entropy)
    evaluator(model, loss, autocast=torch.bfloat16)()
    step = Step(model, loss, [torch.optim.SGD(model.parameters(), lr=0.1)], StepOptions(autocast=torch.bfloat16))
    step.accumulate((FEATURES, TARGET), 23)
    assert model.weight.grad is not None
    assert model.weight.grad.abs().sum() > 0


def limited(samples: int):
    """A loss that runs out of memory above so many samples, as an allocator would say it."""
    plain = supervised(functional.cross_entropy)

    def loss(model, batch):
        if len(batch[1]) > samples:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return plain(model, batch)

    return loss


@pytest.mark.trap(45)
def test_a_batch_that_does_not_fit_is_halved_and_the_result_is_the_same():
    model = network()
    whole = evaluator(model, metrics={"accuracy": MulticlassAccuracy(4)}, batch_size=16)()
    halving = evaluator(model, limited(5), metrics={"accuracy": MulticlassAccuracy(4)}, batch_size=16)
    found = halving()
    assert found.batch_size == halving.batch_size == 4
    assert found.results == pytest.approx(whole.results, rel=1e-6)


@pytest.mark.trap(51)
def test_a_nan_loss_stays_nan():
    loss = lambda model, batch: Loss(model(batch[0]).sum() * float("nan"), len(batch[1]))  # noqa: E731
    assert evaluator(network(), loss)().results["loss"] != evaluator(network(), loss)().results["loss"]


def test_an_evaluation_that_counts_nothing_is_an_error():
    with pytest.raises(DataFailed, match="counted no item"):
        evaluator(network(), batches=batches_of(target=torch.full((23,), -100)))()


class Greedy(MulticlassAccuracy):
    def compute(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def test_memory_that_runs_out_while_ranks_meet_ends_an_evaluation_that_they_do_not_begin_again(monkeypatch):
    monkeypatch.setattr("hasten.training.evaluate.sum_over_ranks", lambda sums, ranks: sums)
    monkeypatch.setattr("hasten.training.evaluate.gather_over_ranks", lambda own, ranks, device: own)
    monkeypatch.setattr("hasten.training.evaluation.job_metrics.gather_in_turn", lambda own, ranks, device: own)
    evaluate = evaluator(network(), metrics={"accuracy": Greedy(4)}, ranks=Ranks(0, 2))
    with pytest.raises(torch.OutOfMemoryError):
        evaluate()
    assert evaluate.batch_size == 8


class Clock:
    """Moved by what is evaluated: ten seconds to begin with, then one for every sample."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def batches(self, size):
        self.now += 10
        yield from batches_of()(size)

    def loss(self, model, batch):
        self.now += len(batch[1])
        return supervised(functional.cross_entropy)(model, batch)


@pytest.mark.parametrize(("seconds", "ahead"), [(0, 0), (3, 2), (100, 50)])
def test_how_long_an_evaluation_takes_is_told_by_a_part_of_it(seconds, ahead):
    clock = Clock()
    timed = evaluator(network(), clock.loss, batches=clock.batches, batch_size=4)
    told = timed.timed(Part(seconds=seconds, samples=len(TARGET), ahead=ahead), clock, lambda: None)
    assert told == pytest.approx(10 + len(TARGET))
    if seconds < 10 and ahead < 3:
        assert clock.now < 10 + len(TARGET)
