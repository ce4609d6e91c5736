"""supervised: the count it reports is the one torch's own mean divides by."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

import hasten
from hasten.errors import JobError
from hasten.facts.job import Loss
from hasten.training.step_parts.losses import mean_and_count
from hasten.training.step_parts.supervised import supervised
from support import small_job

LABELS = torch.tensor([0, 2, -100, 1, 2])
SCORES = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
REALS = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
WEIGHT = torch.tensor([0.2, 3.0, 1.1])


def mean_of(loss: Loss) -> torch.Tensor:
    return mean_and_count(loss, 1)[0]


class Bias(nn.Module):
    """A model that only shifts its input, so that the loss has a gradient."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, features):
        return features + self.shift


class OwnCrossEntropy(nn.CrossEntropyLoss):
    """A subclass that computes what its base does."""


CASES = [
    (functional.cross_entropy, LABELS),
    (partial(functional.cross_entropy, label_smoothing=0.1), LABELS),
    (partial(functional.cross_entropy, weight=WEIGHT), LABELS),
    (partial(functional.cross_entropy, weight=WEIGHT, label_smoothing=0.2), LABELS),
    (nn.CrossEntropyLoss(), LABELS),
    (nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=1, label_smoothing=0.1), torch.tensor([0, 2, 1, 1, 2])),
    (functional.cross_entropy, REALS.softmax(1)),
    (nn.MSELoss(), REALS),
    (partial(functional.huber_loss, delta=0.5), REALS),
    (nn.BCEWithLogitsLoss(weight=WEIGHT, pos_weight=WEIGHT), REALS.sigmoid()),
    (OwnCrossEntropy(), LABELS),
    (nn.KLDivLoss(reduction="batchmean"), REALS.softmax(1)),
    (partial(functional.cross_entropy, weight=WEIGHT), torch.tensor([0, 2, 1, 1, 2], dtype=torch.uint8)),
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


IMAGE_SCORES = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(2))
IMAGE_LABELS = torch.randint(0, 3, (4, 5, 5), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("loss", [functional.cross_entropy, nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1)])
@pytest.mark.parametrize("target", [IMAGE_LABELS.index_fill(1, torch.tensor([0]), -100), IMAGE_SCORES.softmax(1)])
def test_a_target_for_every_pixel_is_counted_as_torch_counts_it(loss, target):
    found = mean_of(supervised(loss)(Bias(), (IMAGE_SCORES, target))).item()
    assert found == pytest.approx(loss(IMAGE_SCORES, target).item(), rel=1e-6)


def test_a_class_of_unsigned_bytes_is_not_taken_for_the_ignored_one():
    scores, target = torch.randn(2, 200), torch.tensor([3, 156], dtype=torch.uint8)  # 156 is -100 in eight bits
    loss = supervised(functional.cross_entropy)(Bias(), (scores, target))
    assert float(loss.count) == 2


# ── what a loss holds ───────────────────────────────────────────────────────────────────────────────────────────────

HOLDERS = [
    lambda: nn.BCEWithLogitsLoss(pos_weight=WEIGHT.clone()),
    lambda: partial(functional.cross_entropy, weight=WEIGHT.clone()),
]


def batch_for(loss, device):
    kind = loss.func if isinstance(loss, partial) else loss
    one_class = isinstance(kind, nn.CrossEntropyLoss) or kind is functional.cross_entropy
    return SCORES.to(device), (LABELS if one_class else REALS.sigmoid()).to(device)


def differentiated(function, loss, device):
    model = Bias().to(device)
    found = function(model, batch_for(loss, device))
    mean_of(found).backward()
    assert model.shift.grad is not None
    return found, model.shift.grad


@pytest.mark.parametrize("make", HOLDERS, ids=range(len(HOLDERS)))
def test_the_tensors_of_a_loss_follow_the_prediction_and_the_callers_own_stay(make):
    loss = make()
    held = list(loss.buffers()) if isinstance(loss, nn.Module) else []
    function = supervised(loss)
    assert differentiated(function, loss, "meta")[0].total.device.type == "meta"
    assert differentiated(function, loss, "cpu")[0].total.device.type == "cpu"
    assert all(tensor.device.type == "cpu" for tensor in held)


@pytest.mark.trap(45)
@pytest.mark.parametrize("make", HOLDERS, ids=range(len(HOLDERS)))
def test_what_was_moved_in_an_evaluation_can_be_trained_with(make):
    loss = make()
    function = supervised(loss)
    with torch.inference_mode():
        function(Bias().to("meta"), batch_for(loss, "meta"))
    differentiated(function, loss, "meta")


@pytest.mark.gpu
@pytest.mark.parametrize("make", HOLDERS, ids=range(len(HOLDERS)))
def test_a_loss_that_holds_tensors_trains_on_an_accelerator(make):
    loss = make()
    here, there = (differentiated(supervised(loss), loss, device) for device in ("cpu", "cuda"))
    torch.testing.assert_close(there[1].cpu(), here[1])


def test_a_loss_with_parameters_of_its_own_is_refused():
    with pytest.raises(JobError, match="no optimizer would update") as refusal:
        supervised(nn.Sequential(nn.Linear(2, 2), nn.MSELoss()))
    assert "0.weight" in refusal.value.what
    assert "model" in refusal.value.fix


# ── sums ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.trap(7)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_a_sum_over_many_tokens_neither_overflows_nor_rounds_in_sixteen_bits(dtype, weight):
    scores, target = torch.zeros(70_001, 3, dtype=dtype), torch.arange(70_001) % 3
    kept = None if weight is None else weight.to(dtype)
    loss = supervised(partial(functional.cross_entropy, weight=kept))(Bias().to(dtype), (scores, target))
    counted = 70_001 if kept is None else kept.double()[target].sum().item()
    assert float(loss.count) == pytest.approx(counted, rel=1e-5)
    assert mean_of(loss).item() == pytest.approx(torch.tensor(3.0).log().item(), rel=1e-3)


@pytest.mark.trap(7)
@pytest.mark.parametrize("loss", [functional.mse_loss, lambda prediction, target: (prediction - target).abs().mean()])
def test_a_mean_in_sixteen_bits_is_multiplied_in_thirty_two(loss):
    values = torch.full((70_001, 2), 2.0, dtype=torch.float16)
    found = supervised(loss)(Bias().half(), (values, torch.zeros_like(values)))
    assert found.total.isfinite()
    assert mean_of(found).item() == pytest.approx(loss(values, torch.zeros_like(values)).item())


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────────────


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


@pytest.mark.parametrize(
    ("returned", "says", "part"),
    [
        (lambda x: (x, x[0]), "the model returned (float32 [5, 3], float32 [3])", "model(batch[0])[0];"),
        (lambda x: {"scores": x}, "the model returned {scores: float32 [5, 3]}", "model(batch[0])['scores'];"),
        (lambda x: None, "the model returned NoneType", "forward() return its output"),
        (lambda x: SimpleNamespace(logits=x), "the model returned SimpleNamespace", "model(batch[0]).logits;"),
    ],
)
@pytest.mark.parametrize("loss", [functional.cross_entropy, nn.MSELoss(), lambda prediction, target: prediction.mean()])
def test_a_model_that_returns_no_tensor_is_refused_with_a_loss_of_ones_own(returned, says, part, loss):
    with pytest.raises(JobError) as caught:
        supervised(loss)(returned, (SCORES, LABELS))
    assert says in caught.value.what
    assert part in caught.value.fix


@pytest.mark.parametrize(
    "loss",
    [
        lambda prediction, target: functional.cross_entropy(prediction, target),
        lambda prediction, target: (prediction - target).square().mean(),
        lambda prediction, target: prediction.square().mean(),
    ],
    ids=["a torch function", "an operator", "a method"],
)
def test_a_loss_of_prediction_and_target_is_refused_with_supervised(loss):
    with pytest.raises(JobError, match="used the model as a tensor") as caught:
        hasten.train(small_job(loss=loss), receivers=[])
    assert "loss=hasten.supervised(function)" in caught.value.fix


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: self.bilinear(x),
        lambda self, x: self.relu(x),
        lambda self, x: self + x,
    ],
    ids=["a missing layer", "one with a name that tensors have", "an operator"],
)
def test_an_error_of_the_model_itself_is_no_wrong_loss(forward):
    class Net(nn.Linear):
        pass

    Net.forward = forward
    with pytest.raises((AttributeError, TypeError), match="'Net'"):
        hasten.train(small_job(model=lambda: Net(4, 1)), receivers=[])


def test_a_loss_that_asks_a_model_for_its_device_is_no_wrong_loss():
    def loss(model, batch):
        return model(batch[0].to(model.device)).mean()

    with pytest.raises(AttributeError, match="no attribute 'device'"):
        hasten.train(small_job(loss=loss), receivers=[])
