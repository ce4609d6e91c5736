"""What a run refuses, and what it tells, when it is resumed with another job than it began with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

import hasten
from hasten.checkpoint.store import Store
from hasten.errors import Misconfigured
from hasten.facts.events import Event, Resumed, Trained
from hasten.training.run_folder.config_differences import code_digest
from hasten.training.setup.configuration import in_force
from support import small_job
from support.training.saved_runs import every, job, resumed


def sgd(**settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda params: torch.optim.SGD(params, **{"lr": 0.1, "momentum": 0.9, **settings})


def cosine(**settings: Any) -> Callable[..., Any]:
    return lambda optimizer, total_steps: lr_scheduler.CosineAnnealingLR(optimizer, total_steps, **settings)


def one_cycle(highest: float) -> Callable[..., Any]:
    return lambda optimizer, total_steps: lr_scheduler.OneCycleLR(optimizer, highest, total_steps=total_steps)


def warmed_up(optimizer: torch.optim.Optimizer, total_steps: int) -> lr_scheduler.LinearLR:
    return lr_scheduler.LinearLR(optimizer, 0.5, total_iters=total_steps)


def plateau(**settings: Any) -> hasten.Schedule:
    return hasten.Schedule(lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, **settings), unit="evaluation")


def dropping(share: float) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(share), nn.Linear(8, 3))


class Attending(nn.Module):
    """Keeps a rate as nanoGPT does: as a number of its own."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share, self.head = share, nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(functional.dropout(rows, self.share, self.training))


def half_trained(folder: Path, **fields: Any) -> None:
    """A run that was interrupted in its middle, so that what it is resumed with can have an effect."""

    class Interrupted:
        def log(self, event: Event) -> None:
            if isinstance(event, Trained) and event.step == 5:
                raise KeyboardInterrupt

        def close(self) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        hasten.train(job(**fields), run_dir=folder, receivers=[Interrupted()], saving=every(2))


def refusal(folder: Path, allow_change: tuple[str, ...] = (), **fields: Any) -> Misconfigured:
    with pytest.raises(Misconfigured) as caught:
        resumed(folder, job(**fields), allow_change=allow_change)
    return caught.value


def notices(events: list[Event]) -> str:
    return "\n".join(next(event.notices for event in events if isinstance(event, Resumed)))


def saved_configuration(folder: Path) -> dict[str, Any]:
    return Store(folder / "checkpoints").found()[0].read().states["configuration"]


# ---- settings of optimizer and schedule


OF_STATE = [
    ("optimizer.weight_decay", "0 → 0.5", {"optimizer": sgd()}, {"optimizer": sgd(weight_decay=0.5)}),
    ("optimizer.lr", "0.1 → 0.5", *({"optimizer": sgd(lr=lr), "schedule": warmed_up} for lr in (0.1, 0.5))),
    (
        "schedule.settings",
        "CosineAnnealingLR.eta_min 0.0 → 0.01",
        *({"schedule": cosine(eta_min=m)} for m in (0.0, 0.01)),
    ),
    (
        "schedule.settings",
        "rates.max_lr 0.1 → 0.5",
        *({"optimizer": sgd(), "schedule": one_cycle(highest)} for highest in (0.1, 0.5)),
    ),
    (
        "schedule.settings",
        "ReduceLROnPlateau.factor 0.1 → 0.5",
        *({"valid": job().train, "schedule": plateau(factor=factor)} for factor in (0.1, 0.5)),
    ),
]


@pytest.mark.parametrize(("key", "told", "before", "now"), OF_STATE)
@pytest.mark.fault("changed configuration on resume")
def test_a_setting_that_the_state_brings_back_is_refused_and_said_to_hold_as_saved(tmp_path, key, told, before, now):
    half_trained(tmp_path / "run", **before)
    refused = refusal(tmp_path / "run", **now)
    assert key in refused.what
    assert told in refused.what
    assert f"--allow-change {key}" in refused.fix
    assert f"The saved {key} is restored" in refused.fix
    assert "--weights" in refused.fix


def test_what_is_said_to_hold_does_hold(tmp_path):
    half_trained(tmp_path / "run", optimizer=sgd())
    events = resumed(tmp_path / "run", job(optimizer=sgd(lr=0.5)), allow_change=["optimizer.lr"])
    assert "optimizer.lr: 0.1 → 0.5, as allowed; but the saved value is used" in notices(events)
    assert {event.learning_rate for event in events if isinstance(event, Trained)} == {0.1}


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": sgd(), "schedule": one_cycle(0.3)},
        {"valid": job().train, "schedule": plateau(patience=0, threshold=10.0), "evaluate_every": 2},
        {"model": lambda: Attending(0.1), "loss": hasten.supervised(nn.CrossEntropyLoss(label_smoothing=0.1))},
    ],
)
def test_one_job_is_the_same_however_often_it_is_resumed_while_its_rates_move(tmp_path, fields):
    half_trained(tmp_path / "run", **fields)
    before = saved_configuration(tmp_path / "run")
    for _ in range(2):
        events = resumed(tmp_path / "run", job(**fields), saving=every(3))
        assert notices(events) == ""
        assert saved_configuration(tmp_path / "run") == before


def test_checkpoints_go_on_to_say_what_holds():
    saved = {"optimizer.lr": 0.1, "epochs": 2, "schedule.settings": {"rates.max_lr": 0.1}}
    plan = {"plan.learning_rate": {"value": 0.7, "options": {}, "preserves": "TRAINING"}}
    now = {"optimizer.lr": 0.5, "epochs": 3, "schedule.settings": {"rates.max_lr": 0.5}, "optimizer.new": 1, **plan}
    assert in_force(saved, now) == {**saved, "epochs": 3, "optimizer.new": 1}


# ---- what the model and the loss are made of


@pytest.mark.fault("changed configuration on resume")
def test_another_rate_of_a_module_is_refused_until_it_is_allowed(tmp_path):
    half_trained(tmp_path / "run", model=dropping(0.2))
    refused = refusal(tmp_path / "run", model=dropping(0.5))
    assert "model: Dropout '1' p 0.2 → 0.5" in refused.what
    assert "--allow-change model" in refused.fix
    told = notices(resumed(tmp_path / "run", job(model=dropping(0.5)), allow_change=["model"]))
    assert "changes what is trained" in told


@pytest.mark.fault("changed configuration on resume")
def test_another_text_of_the_jobs_file_is_told_and_not_refused(tmp_path, monkeypatch):
    half_trained(tmp_path / "run")
    monkeypatch.setattr("hasten.training.run_folder.config_differences.text_of_module", lambda name: "another text")
    told = notices(resumed(tmp_path / "run", job()))
    assert "code: the job's file has changed, which is used from here on" in told


def test_the_files_of_all_of_the_jobs_functions_count_and_those_of_libraries_do_not():
    text = {"written": "one"}

    def function_of(module: str) -> Any:
        function = lambda *given: None  # noqa: E731
        function.__module__ = module
        return function

    def digest(**changes: Any) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "hasten.training.run_folder.config_differences.text_of_module", lambda name: text.get(name, "")
            )
            return code_digest(small_job(**changes))

    for field in ("model", "loss", "optimizer", "parameters", "collate", "eval_loss"):
        for wrapped in (function_of("written"), partial(function_of("written"))):
            text["written"] = "one"
            before = digest(**{field: wrapped})
            assert digest(**{field: wrapped}) == before
            text["written"] = "two"
            assert digest(**{field: wrapped}) != before
    assert digest(loss=function_of("torch.nn")) == digest(loss=function_of("hasten.training"))


# ---- what cannot go on


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=0.1)


def wider() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.3), nn.Linear(9, 3))


def two_optimizers(params: Any) -> list[torch.optim.Optimizer]:
    first, *others = params
    return [torch.optim.SGD([first], lr=0.1), torch.optim.SGD(others, lr=0.1)]


WITH_VALID = {"valid": job().train}
UNFIT = [
    ("parameters", {}, {"model": wider}),
    ("optimizer.1", {}, {"optimizer": two_optimizers}),
    ("schedule.length", {"schedule": cosine()}, {"schedule": cosine(), "epochs": 3}),
    ("stop", WITH_VALID, {**WITH_VALID, "stop": hasten.EarlyStopping()}),
    ("keep", {**WITH_VALID, "keep": "best"}, WITH_VALID),
    ("average", {}, {"average": hasten.ExponentialAverage()}),
]


@pytest.mark.parametrize(("key", "before", "now"), UNFIT, ids=[key for key, *_ in UNFIT])
@pytest.mark.fault("changed configuration on resume")
def test_a_change_that_no_state_fits_is_not_offered(tmp_path, key, before, now):
    half_trained(tmp_path / "run", **before)
    refused = refusal(tmp_path / "run", **now)
    assert "--allow-change" not in refused.fix
    assert key in refused.fix
    assert "hasten export" in refused.fix


def test_an_optimizer_that_goes_on_from_anothers_state_is_offered(tmp_path):
    half_trained(tmp_path / "run", optimizer=adam)

    def adamw(params: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=0.1)

    assert "--allow-change optimizer" in refusal(tmp_path / "run", optimizer=adamw).fix
    resumed(tmp_path / "run", job(optimizer=adamw), allow_change=["optimizer"])


# ---- what is asked for, and how it is told


def test_a_change_names_no_other_that_follows_from_it(tmp_path):
    half_trained(tmp_path / "run", optimizer=sgd(), schedule=one_cycle(0.1))
    assert refusal(tmp_path / "run", optimizer=adam, schedule=cosine()).what.endswith(
        "configuration: optimizer: SGD → Adam; schedule: OneCycleLR → CosineAnnealingLR"
    )
