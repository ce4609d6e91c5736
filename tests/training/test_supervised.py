"""supervised: the count it reports is the one torch's own mean divides by."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from hasten.errors import JobError
from hasten.training.losses import mean_of
from hasten.training.supervised import supervised

LABELS = torch.tensor([0, 2, -100, 1, 2])
SCORES = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
REALS = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
WEIGHT = torch.tensor([0.2, 3.0, 1.1])


class Bias(nn.Module):
    """A model that only shifts its input, so that the loss has a gradient."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, features):
        return features + self.shift


CASES = [
    (functional.cross_entropy, LABELS),
    (partial(functional.cross_entropy, label_smoothing=0.1), LABELS),
    (partial(functional.cross_entropy, ignore_index=2), torch.tensor([0, 2, 1, 1, 2])),
    (partial(functional.cross_entropy, weight=WEIGHT), LABELS),
    (partial(functional.cross_entropy, weight=WEIGHT, label_smoothing=0.2), LABELS),
    (nn.CrossEntropyLoss(), LABELS),
    (nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=1, label_smoothing=0.1), torch.tensor([0, 2, 1, 1, 2])),
    (functional.cross_entropy, REALS.softmax(1)),
    (nn.NLLLoss(), LABELS),
    (functional.mse_loss, REALS),
    (nn.MSELoss(), REALS),
    (partial(functional.huber_loss, delta=0.5), REALS),
    (nn.BCEWithLogitsLoss(), REALS.sigmoid()),
    (lambda prediction, target: (prediction - target).abs().amax(1).mean(), REALS),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_the_mean_is_torchs_own(case):
    loss, target = case
    found = mean_of(supervised(loss)(Bias(), (SCORES, target))).item()
    assert found == pytest.approx(loss(SCORES, target).item(), rel=1e-6)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_totals_and_counts_of_two_halves_add_up_to_the_whole(case):
    loss, target = case
    function = supervised(loss)
    parts = [function(Bias(), (SCORES[piece], target[piece])) for piece in (slice(0, 2), slice(2, 5))]
    whole = function(Bias(), (SCORES, target))
    assert sum(part.total.item() for part in parts) == pytest.approx(whole.total.item(), rel=1e-6)
    assert sum(float(part.count) for part in parts) == pytest.approx(float(whole.count), rel=1e-6)


def test_predictions_and_targets_are_handed_on_for_metrics():
    loss = supervised(functional.cross_entropy)(Bias(), (SCORES, LABELS))
    assert torch.equal(loss.prediction, SCORES)
    assert loss.target is LABELS


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_another_reduction_is_refused(reduction):
    for loss in (nn.MSELoss(reduction=reduction), partial(functional.cross_entropy, reduction=reduction)):
        with pytest.raises(JobError, match="reduction") as refusal:
            supervised(loss)
        assert "hasten.Loss" in refusal.value.fix


def test_a_loss_class_instead_of_a_loss_is_refused():
    with pytest.raises(JobError, match="CrossEntropyLoss"):
        supervised(nn.CrossEntropyLoss)


@pytest.mark.parametrize("batch", [(1, 2, 3), {"input": 1}, torch.ones(2)])
def test_a_batch_that_is_no_pair_is_refused(batch):
    with pytest.raises(JobError, match="input, target"):
        supervised(functional.mse_loss)(Bias(), batch)
