"""A plan's choices meet the job: in what order, with which claims, and where a wrong one stands."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from hasten.entry import prepare
from hasten.errors import PlanError
from hasten.facts.choice import Preserves, Value
from hasten.facts.machine import read_machine
from hasten.facts.plan import Plan, make_plan
from hasten.facts.plan_file import plan_from_toml
from hasten.training.setup.apply_plan import in_order
from support import small_job

WRONG = """\
# two choices, the second of which makes no sense
[[choice]]
technique = "threads"
value = 1

[[choice]]
technique = "%s"
value = %s
"""


def claims(plan: Plan, **job: object) -> list[Preserves | None]:
    with prepare(small_job(**job), plan) as run:
        return [item.choice.preserves for item in run.built.plan.choices]


def norms() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("technique", "value", "says"),
    [
        ("microbatch", "100", "the plan asks for microbatch = 100"),
        ("microbatch", '"2"', 'the plan asks for microbatch = "2"'),
        ("schedule", '"OneCycle"', "is not a scheduler of torch"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused_with_its_file_and_line(technique: str, value: str, says: str):
    plan = plan_from_toml(WRONG % (technique, value), "plans/mine.toml")
    with pytest.raises(PlanError, match=says) as caught:
        prepare(small_job(), plan)
    assert caught.value.where == f"plans/mine.toml:6: {technique}"
    assert caught.value.fix


def test_choices_that_exclude_each_other_are_refused_with_both_lines():
    text = "".join(
        f'[[choice]]\ntechnique = "{name}"\nvalue = 2\n' for name in ("accumulation", "threads", "microbatch")
    )
    with pytest.raises(PlanError, match="accumulation = 2 and microbatch = 2 exclude each other") as caught:
        in_order(plan_from_toml(text, "mine.toml"))
    assert caught.value.where == "mine.toml:1: accumulation, mine.toml:7: microbatch"


def test_an_unknown_technique_is_refused_with_its_line():
    with pytest.raises(PlanError, match=r"no technique named 'presicion'(.|\n)*precision") as caught:
        in_order(plan_from_toml(WRONG % ("presicion", 1), "mine.toml"))
    assert caught.value.where == "mine.toml:6"


@pytest.mark.parametrize(
    ("model", "value", "claim"),
    [
        (lambda: nn.Linear(6, 3), 4, Preserves.ROUNDING),
        (norms, 4, Preserves.STATISTICS),
        (norms, 3, Preserves.TRAINING),  # no half of the batch, so the technique has said nothing of it
    ],
)
def test_a_choice_that_claims_nothing_takes_the_claim_of_its_technique(model: object, value: Value, claim: Preserves):
    assert claims(make_plan(microbatch=value), model=model) == [claim]


class Opening(Dataset):
    """Opens its file with the first sample, as data sets do whose file no two processes may share."""

    def __init__(self, rows: torch.Tensor, log: Path) -> None:
        self.rows, self.log, self.file = rows, log, None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.file is None:
            self.file = self.log.open("a")
        print(index, file=self.file, flush=True)
        return self.rows[index], index % 3


@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="workers do not start as copies here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    "plan",
    [
        make_plan(loader_workers=2, prefetch=4),
        make_plan(loader_workers=2, prefetch=4, activation_checkpointing="measured"),
    ],
)
def test_choices_look_at_one_batch_and_nothing_is_opened_before_the_training(tmp_path, monkeypatch, plan):
    small = replace(read_machine(), cores=4, shared_memory_bytes=64 << 20, ranks=1)
    monkeypatch.setattr("hasten.training.setup.prepared_job.read_machine", lambda: small)
    data = Opening(torch.randn(40, 6), tmp_path / "read")
    with prepare(small_job(model=norms, train=data), plan):
        assert data.file is None
        assert len((tmp_path / "read").read_text().splitlines()) == 8
