"""The parts of a loss by their names: in logs and in evaluations, means over the same items as the loss's."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hasten
from hasten.errors import JobError
from hasten.facts.events import Evaluated, Trained
from hasten.facts.plan import make_plan
from hasten.facts.ranks import ALONE
from hasten.training.step_parts.losses import LossRecord
from support import small_job
from support.training.collected_events import Collected


def two_terms(model: nn.Module, batch: Any) -> hasten.Loss:
    output = model(batch[0])
    near, small = (output[:, 0] - batch[1]).square().sum(), output.square().sum() / 10
    return hasten.Loss(near + small, len(batch[0]), parts={"near": near, "small": small})


def events(**changes: Any) -> list[Any]:
    collected = Collected()
    fields: dict[str, Any] = {"loss": two_terms, "valid": small_job().train, "log_every": 3, "evaluate_every": 6}
    plan = changes.pop("plan", None)
    hasten.train(small_job(**(fields | changes)), plan, receivers=[collected])
    return collected.events


@pytest.mark.parametrize("plan", [None, make_plan(microbatch=3)], ids=str)
def test_the_parts_of_every_log_line_and_evaluation_add_up_to_the_loss(plan):
    found = [each for each in events(plan=plan) if isinstance(each, Trained | Evaluated)]
    assert {type(each) for each in found} == {Trained, Evaluated}
    for each in found:
        parts = each.parts if isinstance(each, Trained) else {name: each.results[name] for name in ("near", "small")}
        loss = each.loss if isinstance(each, Trained) else each.results["loss"]
        assert sum(parts.values()) == pytest.approx(loss, rel=1e-5)
        assert min(parts.values()) > 0


def test_parts_change_no_weight():
    def without(model, batch):
        given = two_terms(model, batch)
        return hasten.Loss(given.total, given.count)

    first, second = (hasten.train(small_job(loss=loss), receivers=[]).weights for loss in (two_terms, without))
    assert all(weight.equal(second[name]) for name, weight in first.items())


def test_a_log_has_them_by_their_names_and_a_loss_without_parts_has_none(tmp_path):
    for name, loss in (("with", two_terms), ("without", small_job().loss)):
        hasten.train(small_job(loss=loss, log_every=1), run_dir=tmp_path / name, receivers=[])
    of, without = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("with", "without")
    )
    assert {*of[1]["parts"]} == {"near", "small"}
    assert not any("parts" in line for line in without)


def test_windows_that_were_not_logged_yet_keep_their_parts_in_a_checkpoint():
    record, resumed = LossRecord(torch.device("cpu"), ALONE), LossRecord(torch.device("cpu"), ALONE)
    record.append(torch.tensor(2.0), 4, parts={"near": torch.tensor(6.0), "small": torch.tensor(2.0)})
    resumed.load_state_dict(json.loads(json.dumps(record.state_dict())))
    assert [window.parts for window in resumed.drain()] == [{"near": 1.5, "small": 0.5}]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"near": torch.ones(2)}, "the part 'near' as shape"),
        ({"near": 1.0}, "the part 'near' as 1.0"),
        ({1: torch.ones(())}, "a part with the name 1"),
        ({"loss": torch.ones(())}, "a part with the name 'loss'"),
        ([torch.ones(())], "the parts"),
    ],
)
def test_what_are_no_parts_is_refused(parts: Any, message: str):
    def loss(model: nn.Module, batch: Any) -> hasten.Loss:
        total: Tensor = two_terms(model, batch).total
        return hasten.Loss(total, 8, parts=parts)

    with pytest.raises(JobError, match=message):
        hasten.train(small_job(loss=loss), receivers=[])


def test_a_part_with_the_name_of_a_metric_is_refused():
    class Near:
        def update(self, prediction, target):
            pass

        def compute(self):
            return 1.0

        def reset(self):
            pass

    def loss(model, batch):
        given = two_terms(model, batch)
        return hasten.Loss(given.total, given.count, parts=given.parts, prediction=batch[0], target=batch[1])

    with pytest.raises(JobError, match="'near', which is the name of a metric too"):
        events(loss=loss, metrics={"near": Near()})
