"""What a user's function raises or returns is reported as the user's: where, what it gave, and what to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import hasten
from faults.commands import ran
from support import small_job
from support.faults.wrong_jobs import JOBS

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _gradients_stay_enabled() -> Iterator[None]:
    yield
    torch.set_grad_enabled(True)


def test_a_run_whose_schedule_raised_is_resumed_with_a_corrected_one(tmp_path: Path) -> None:
    def job(rate):
        schedule = hasten.Schedule(lambda optimizer: LambdaLR(optimizer, rate), unit="step")
        return small_job(schedule=schedule, epochs=1, evaluate_every=None)

    def rate(step):
        return 1 / (1 + step)

    with pytest.raises(TypeError, match="unsupported operand"):
        hasten.train(job(lambda step: None if step == 3 else rate(step)), run_dir=tmp_path / "run", receivers=[])
    assert {each.name for each in (tmp_path / "run" / "checkpoints").iterdir()} >= {"step-3"}
    resumed = hasten.resume(job(rate), run_dir=tmp_path / "run", receivers=[])
    undisturbed = hasten.train(job(rate), receivers=[])
    for name, weight in undisturbed.weights.items():
        assert weight.equal(resumed.weights[name])


SELDOM = ("raises_a_key", "without_text", "something_unusual", "no_repr", "an_empty_list", "cannot_be_shown")


def enrolled() -> Iterator[Any]:
    for name in sorted(JOBS):
        is_seldom = any(each in name for each in SELDOM) and not name.startswith("loss_")
        yield pytest.param(name, marks=[pytest.mark.proof] if is_seldom else [])


@pytest.mark.parametrize("name", [*enrolled()])
def test_an_error_names_the_users_part_of_the_job(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, error = ran("train", f"support.faults.wrong_jobs:{name}")
    assert code in (2, 10, 11, 13), error
    assert "bug in hasten" not in error
    assert "Job." in error or "/wrong_" in error or "the sampler" in error, error
    assert "fix  " in error
    if "_exits_" in name:
        assert code == 10
        assert "SystemExit: 0" in error
        assert "in raise_it" in error
        assert "is saved and verified" in error or name.endswith("_at_first") or name.startswith("sampler")
