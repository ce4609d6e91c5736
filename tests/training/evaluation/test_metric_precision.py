"""Metrics and evaluations add up in float32, whatever precision the model computes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hasten
from hasten.training.evaluate import Evaluator
from support import small_job

TOKENS = torch.randint(0, 50, (16, 65), generator=torch.Generator().manual_seed(0))
REPEATS = 60  # enough that a sum of 16-bit numbers stops growing


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


class LogLikelihood:
    higher_is_better = False

    def reset(self) -> None:
        self.total: Tensor | float = 0.0
        self.count = 0

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.total -= prediction.log_softmax(-1).gather(-1, target.unsqueeze(-1)).sum()
        self.count += target.numel()

    def compute(self) -> Any:
        return self.total / self.count


def loss(model: nn.Module, batch: Tensor) -> hasten.Loss:
    prediction, target = model(batch[:, :-1]), batch[:, 1:]
    total = F.cross_entropy(prediction.flatten(0, 1).float(), target.flatten(), reduction="sum")
    return hasten.Loss(total, target.numel(), prediction=prediction, target=target)


def results(model: Any = Network, plan: Any = None) -> dict[str, float]:
    job = small_job(
        model=model,
        loss=loss,
        train=TOKENS,
        valid=TOKENS.repeat(REPEATS, 1),
        batch_size=16,
        epochs=1,
        metrics={"nll": LogLikelihood()},
    )
    return dict(hasten.train(job, plan).results)


def test_a_metric_that_is_a_ratio_of_sums_equals_the_loss_under_autocast():
    found = results(plan=hasten.make_plan(precision="bf16"))
    assert found["nll"] == pytest.approx(found["loss"], rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_metric_that_is_a_ratio_of_sums_equals_the_loss_of_a_model_of_16_bits(dtype: torch.dtype):
    found = results(model=lambda: Network().to(dtype))
    assert found["nll"] == pytest.approx(found["loss"], rel=1e-4)


class Pair(NamedTuple):
    first: Tensor
    second: Any


class Dtypes:
    """The dtypes that it was given, in the order of the parts."""

    def __init__(self) -> None:
        self.found: list[torch.dtype] = []

    def __deepcopy__(self, memo: Any) -> Dtypes:
        return self

    def reset(self) -> None:
        self.found.clear()

    def update(self, prediction: Any, target: Any) -> None:
        self.found += [each.dtype for part in (prediction, target) for each in _tensors(part)]

    def compute(self) -> int:
        return len(self.found)


def _tensors(part: Any) -> list[Tensor]:
    if isinstance(part, Tensor):
        return [part]
    parts = part.values() if isinstance(part, dict) else part
    return [each for item in parts for each in _tensors(item)]


def evaluate(model: nn.Module, loss: Any, rows: Tensor, metric: Any = None, *, batches: int = 1) -> Mapping[str, float]:
    metrics = {} if metric is None else {"own": metric}
    given = [(rows, len(rows))] * batches
    return Evaluator(model, loss, metrics, lambda size: (each for each in given), 8, device=rows.device)().results


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "form",
    [
        lambda x: x,
        lambda x: {"a": x, "b": (x, [x])},
        lambda x: Pair(x, {"c": x.long()}),
    ],
    ids=["tensor", "dictionary", "named tuple"],
)
def test_every_floating_point_tensor_reaches_a_metric_in_float32_or_wider(form: Any, dtype: torch.dtype):
    seen = Dtypes()
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(1), dtype=dtype)

    def loss(model: nn.Module, batch: Tensor) -> hasten.Loss:
        return hasten.Loss(model(batch).sum(), len(batch), prediction=form(batch), target=form(batch[:, 0]))

    evaluate(nn.Linear(6, 3).to(dtype), loss, rows, seen)
    floating = torch.float64 if dtype is torch.float64 else torch.float32
    assert set(seen.found) - {torch.long} == {floating}
    assert len(seen.found) == 2 * len(_tensors(form(rows)))


def test_the_loss_keeps_what_it_returned():
    kept = list[hasten.Loss]()

    def loss(model: nn.Module, batch: Tensor) -> hasten.Loss:
        kept.append(hasten.Loss(model(batch).sum(), len(batch), prediction=[model(batch)], target=batch))
        return kept[-1]

    rows = torch.ones(8, 6, dtype=torch.bfloat16)
    evaluate(nn.Linear(6, 3).bfloat16(), loss, rows, Dtypes())
    assert kept[0].prediction[0].dtype is torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("part", ["mean", "total", "count", "auxiliary"])
def test_an_evaluation_adds_up_16_bit_losses_without_rounding_their_sum(part: str, dtype: torch.dtype):
    """2,049 is a number of neither 16-bit type."""
    one, zero = torch.ones((), dtype=dtype), torch.zeros(())
    returned = {
        "mean": one,
        "total": hasten.Loss(one, 1),
        "count": hasten.Loss(torch.ones(()), one),
        "auxiliary": hasten.Loss(zero, 1, auxiliary=one),
    }[part]
    found = evaluate(nn.Linear(6, 3), lambda model, batch: returned, torch.ones(2049, 6), batches=3)
    assert found["loss"] == 1.0


@pytest.mark.parametrize(("dtype", "count"), [(torch.bfloat16, 129), (torch.float16, 1025)], ids=str)
def test_a_window_counts_its_items_in_float32(dtype: torch.dtype, count: int):
    """Seven times the count is no number of its type."""

    def weights(kind: torch.dtype) -> dict[str, Tensor]:
        def loss(model: nn.Module, batch: Any) -> hasten.Loss:
            total = F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
            return hasten.Loss(total * count, torch.full((), count, dtype=kind))

        job = small_job(loss=loss, batch_size=7, max_steps=1, epochs=None)
        return dict(hasten.train(job, hasten.make_plan(microbatch=1)).weights)

    found, wanted = weights(dtype), weights(torch.float64)
    assert all(torch.equal(each, wanted[name]) for name, each in found.items())
