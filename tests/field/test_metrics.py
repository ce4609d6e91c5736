"""Public reports of losses and metrics that were not those of the data."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassF1Score
from torchmetrics.functional.classification import binary_auroc, multiclass_f1_score

import hasten
from hasten.errors import JobError, NonFinite
from support import small_job
from support.training.reported_runs import IN_ORDER, check_resumes, plain_weights, trained, zeros

ROWS, LABELS = small_job().train
SUPERVISED = hasten.supervised(functional.cross_entropy)


def predicted(weights):
    model = zeros()
    model.load_state_dict(weights)
    return model(ROWS)


def test_the_last_small_batch_of_an_evaluation_weighs_its_samples():
    """huggingface/transformers#41898, davidnabergoj/torchflows#7"""
    result, *_ = trained(valid=(ROWS[:19], LABELS[:19]), batch_size=8, **IN_ORDER)
    wanted = functional.cross_entropy(predicted(plain_weights()[-1])[:19], LABELS[:19])
    assert result.results["loss"] == pytest.approx(wanted.item(), rel=1e-6)


def test_a_metric_of_ranks_is_that_of_all_samples_and_no_mean_over_batches():
    """hypernetwork-research-group/hypertorch#113"""

    def loss(model, batch):
        scores = model(batch[0])
        total = functional.cross_entropy(scores, batch[1], reduction="sum")
        return hasten.Loss(total, len(scores), prediction=scores[:, 0], target=batch[1] == 0)

    result, *_ = trained(loss=loss, valid=(ROWS, LABELS), metrics={"auroc": BinaryAUROC()}, **IN_ORDER)
    wanted = binary_auroc(predicted(plain_weights()[-1])[:, 0], (LABELS == 0).long())
    assert result.results["auroc"] == pytest.approx(wanted.item())


def test_a_metric_begins_anew_with_each_evaluation():
    """unit8co/darts#2391"""
    metrics = {"f1": MulticlassF1Score(3)}
    _, _, evaluations = trained(loss=SUPERVISED, valid=(ROWS, LABELS), metrics=metrics, evaluate_every=5, **IN_ORDER)
    for each, weights in zip(evaluations, plain_weights()[4::5], strict=True):
        assert each.results["f1"] == pytest.approx(multiclass_f1_score(predicted(weights), LABELS, 3).item())


@pytest.mark.parametrize("plan", [None, hasten.make_plan(microbatch=3)], ids=["whole", "microbatches"])
def test_the_loss_that_is_logged_is_that_of_all_microbatches(plan):
    """huggingface/transformers#35204, karpathy/nanochat#515, guarin's lightly-ai/lightly-train#662"""
    weights = [zeros().state_dict(), *plain_weights()[:-1]]
    places = [slice(8 * (step % 5), 8 * (step % 5) + 8) for step in range(10)]
    wanted = [functional.cross_entropy(predicted(w)[p], LABELS[p]).item() for w, p in zip(weights, places, strict=True)]
    assert [each.loss for each in trained(plan, **IN_ORDER)[1]] == pytest.approx(wanted, rel=1e-5)


def test_evaluations_of_the_same_weights_that_draw_give_the_same():
    """ai2cm/ace#1170"""

    def noisy(model, batch):
        return functional.cross_entropy(model(batch[0] + torch.randn_like(batch[0])), batch[1])

    optimizer = lambda params: torch.optim.SGD(params, lr=0.0)  # noqa: E731
    _, _, found = trained(eval_loss=noisy, optimizer=optimizer, valid=(ROWS, LABELS), evaluate_every=1)
    assert len({each.results["loss"] for each in found}) == 1


def test_how_often_a_run_is_evaluated_changes_nothing_that_it_draws():
    """3lc-ai/3lc-ultralytics#9"""
    model = lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))  # noqa: E731
    often, once, never = (
        trained(model=model, **changes)[0].weights
        for changes in ({"valid": (ROWS, LABELS), "evaluate_every": 1}, {"valid": (ROWS, LABELS)}, {})
    )
    assert all(torch.equal(often[name], each) and torch.equal(once[name], each) for name, each in never.items())


def test_an_evaluation_has_no_dropout_and_the_step_after_it_has():
    """unslothai/unsloth-zoo#1011, kohya-ss/sd-scripts#1903"""
    modes = []

    class Watched(nn.Linear):
        def forward(self, rows):
            modes.append(self.training)
            return super().forward(rows)

    trained(model=lambda: Watched(6, 3), valid=(ROWS[:8], LABELS[:8]), evaluate_every=2, epochs=1)
    assert modes == [True, True, False] * 2 + [True, False]


def test_a_metric_that_does_not_say_which_way_is_better_is_refused():
    """huggingface/transformers#31142"""

    class Undirected(MulticlassAccuracy):
        higher_is_better = None

    changes = {"loss": SUPERVISED, "valid": (ROWS, LABELS), "metrics": {"other_loss": Undirected(3)}}
    with pytest.raises(JobError, match="higher is better"):
        trained(stop=hasten.EarlyStopping("other_loss"), **changes)


def test_an_evaluation_that_is_no_number_is_an_error():
    """ultralytics/ultralytics#19357"""
    changes = {"eval_loss": lambda model, batch: model(batch[0]).mean() * float("nan"), "valid": (ROWS, LABELS)}
    with pytest.raises(NonFinite, match="NaN"):
        trained(stop=hasten.EarlyStopping(patience=5), **changes)


@pytest.mark.parametrize("size", [1, 7, 40])
def test_what_is_padded_does_not_count_whatever_the_batch_holds(size):
    """axolotl-ai-cloud/axolotl#3988, ml-explore/mlx-lm#1855"""
    labels = torch.where(ROWS[:, 0] > 0, LABELS, -100)
    result, *_ = trained(hasten.make_plan(evaluation_batch=size), loss=SUPERVISED, valid=(ROWS, labels), **IN_ORDER)
    wanted = functional.cross_entropy(predicted(plain_weights()[-1]), labels)
    assert result.results["loss"] == pytest.approx(wanted.item(), rel=1e-5)


def test_an_evaluation_that_was_due_at_an_interruption_is_made(tmp_path):
    """Open-Athena/marin-dna#282, meta-pytorch/torchrec#2717"""
    check_resumes(tmp_path, (2, 4, 7), evaluate_every=2, valid=(ROWS, LABELS))
