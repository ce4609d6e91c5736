"""A run that begins with weights that are there already: what it takes of them, and what becomes of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import hasten
from hasten.errors import Misconfigured, StorageFailed
from hasten.training.run_folder.folder_names import BEGAN_WITH as NAME
from hasten.training.weights.initial_weights import put
from support import small_job

STILL = {"optimizer": lambda params: torch.optim.SGD(params, lr=0.0), "max_steps": 2}


def linear(seed: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"weight": torch.randn(3, 6, generator=generator), "bias": torch.randn(3, generator=generator)}


def written(path: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    safetensors.torch.save_file(linear() if tensors is None else tensors, path)
    return path


def same(found: Any, wanted: Any) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(each, wanted[name]) for name, each in found.items())


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(8, 3)
    )


def test_the_run_begins_with_the_weights_of_the_file(tmp_path: Path):
    result = hasten.train(small_job(**STILL), weights=written(tmp_path / "a.safetensors"), receivers=[])
    assert same(result.weights, linear())


@pytest.mark.parametrize("plan", [None, hasten.make_plan(conv_bn_bias=True)])
def test_a_plan_changes_the_model_after_it_has_the_weights(tmp_path: Path, plan: Any):
    torch.manual_seed(8)
    given = convolution().state_dict()

    def ready() -> nn.Module:
        model = convolution()
        model.load_state_dict(given)
        return model

    wanted = hasten.train(small_job(model=ready, max_steps=4), plan, receivers=[])
    path = written(tmp_path / "a.safetensors", given)
    found = hasten.train(small_job(model=convolution, max_steps=4), plan, weights=path, receivers=[])
    assert same(found.weights, wanted.weights)


class Wrapped(nn.Module):
    """Whose own names begin as those of a parallel model do."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(6, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.module(rows)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight


def test_names_that_fit_as_they_are_keep_what_looks_like_a_prefix(tmp_path: Path):
    model = Wrapped()
    put(written(tmp_path / "a.safetensors", {f"module.{name}": each for name, each in linear().items()}), model)
    assert same(model.module.state_dict(), linear())


def test_a_tensor_of_several_names_needs_to_be_given_by_one(tmp_path: Path):
    given = {name: each for name, each in Tied().state_dict().items() if name != "last.weight"}
    model = Tied()
    put(written(tmp_path / "a.safetensors", given), model)
    assert torch.equal(model.last.weight, given["first.weight"])
    with pytest.raises(Misconfigured, match=r'Missing key.*"first\.weight", "last\.weight"'):
        put(written(tmp_path / "b.safetensors", {n: e for n, e in given.items() if "weight" not in n}), Tied())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda given: given.pop("bias"), 'Missing key.*"bias"'),
        (lambda given: given.update(head=torch.zeros(1)), 'Unexpected key.*"head"'),
        (lambda given: given.update(weight=torch.zeros(6, 3)), "size mismatch for weight"),
    ],
)
def test_weights_of_another_model_are_refused_by_their_names(tmp_path: Path, change: Any, says: str):
    given = linear()
    change(given)
    path = written(tmp_path / "a.safetensors", given)
    with pytest.raises(Misconfigured, match=says) as caught:
        hasten.train(small_job(), weights=path, run_dir=tmp_path / "run", receivers=[])
    assert caught.value.where == str(path)
    assert "hasten.read_weights" in caught.value.fix
    assert not list((tmp_path / "run").iterdir())


# ── going on ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Stopped(KeyboardInterrupt):
    pass


class StopsAt:
    """A receiver that ends the run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def log(self, event: Any) -> None:
        if getattr(event, "step", None) == self.step and isinstance(event, hasten.facts.events.Trained):
            raise Stopped

    def close(self) -> None:
        pass


def begun(folder: Path, path: Path, stop_at: int | None = None) -> Any:
    receivers = [StopsAt(stop_at)] if stop_at is not None else []
    saving = hasten.Saving(every_steps=2)
    return hasten.train(small_job(log_every=1), weights=path, run_dir=folder, saving=saving, receivers=receivers)


def test_a_resumed_run_goes_on_with_its_own_weights_and_never_looks_at_the_file(tmp_path: Path):
    path = written(tmp_path / "a.safetensors")
    whole = begun(tmp_path / "whole", path)
    with pytest.raises(Stopped):
        begun(tmp_path / "run", path, stop_at=5)
    assert (tmp_path / "run" / NAME).is_file()
    path.unlink()
    resumed = hasten.resume(small_job(log_every=1), run_dir=tmp_path / "run", receivers=[])
    assert same(resumed.weights, whole.weights)
    log = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert log.count("started from the weights of") == 1


def without_checkpoint(tmp_path: Path) -> tuple[Path, Any]:
    """A run as a kill before its first checkpoint leaves it, and what it would have come to."""
    whole = begun(tmp_path / "run", written(tmp_path / "a.safetensors"))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    return tmp_path / "run", whole


def test_a_run_that_has_no_checkpoint_begins_anew_with_the_same_weights(tmp_path: Path):
    run, whole = without_checkpoint(tmp_path)
    resumed = hasten.resume(small_job(log_every=1), run_dir=run, receivers=[])
    assert same(resumed.weights, whole.weights)
    assert not same(hasten.train(small_job(), receivers=[]).weights, whole.weights)


def test_a_run_that_was_killed_while_it_was_built_begins_with_the_weights_it_was_to_have(tmp_path: Path):
    """Its folder says so before the job's own code runs, which can take minutes."""
    path, seen = written(tmp_path / "a.safetensors"), list[list[str]]()

    def model() -> nn.Module:
        seen.append(sorted(each.name for each in (tmp_path / "run").iterdir()))
        return nn.Linear(6, 3)

    whole = hasten.train(small_job(model=model), weights=path, run_dir=tmp_path / "run", receivers=[])
    assert seen == [[".lock", NAME]]
    for each in (tmp_path / "run").iterdir():
        if each.name != NAME:
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    assert same(hasten.resume(small_job(), run_dir=tmp_path / "run", receivers=[]).weights, whole.weights)


@pytest.mark.parametrize(
    ("harm", "error", "says"),
    [
        (
            lambda tmp: written(tmp / "a.safetensors", linear(seed=6)),
            Misconfigured,
            "this run started from are missing or have changed",
        ),
        (
            lambda tmp: (tmp / "a.safetensors").unlink(),
            Misconfigured,
            "this run started from are missing or have changed",
        ),
        (
            lambda tmp: (tmp / "run" / NAME).write_text('{"path": 3}'),
            StorageFailed,
            "does not say which weights the run started from",
        ),
    ],
)
def test_a_run_never_begins_anew_with_other_weights(tmp_path: Path, harm: Any, error: Any, says: str):
    run, _ = without_checkpoint(tmp_path)
    harm(tmp_path)
    with pytest.raises(error, match=says):
        hasten.resume(small_job(), run_dir=run, receivers=[])
