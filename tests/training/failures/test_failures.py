"""Whose fault an exception is."""

from __future__ import annotations

import re
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassF1Score

import hasten
from hasten.errors import JobError, OutOfMemory, StorageFailed, UserCodeFailed
from hasten.training.failures.as_failure import as_failure
from hasten.users_code import users_traceback
from support import small_job


def raised_by(call: object, *arguments: object) -> Exception:
    try:
        call(*arguments)  # type: ignore[operator]
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def mistake() -> None:
    nn.Linear(3, 3)(torch.zeros(2, 4))


def test_an_error_deep_in_a_library_is_placed_where_the_user_called_it():
    failure = as_failure(raised_by(mistake))
    assert isinstance(failure, UserCodeFailed)
    assert failure.where.endswith("in mistake")
    assert "test_failures.py" in failure.where
    assert failure.fix == "fix this line: nn.Linear(3, 3)(torch.zeros(2, 4))"
    assert failure.what.startswith("RuntimeError: mat1 and mat2 shapes")


def import_what_is_not_installed() -> None:
    import torchtext_of_2019  # noqa: F401  # pyright: ignore[reportMissingImports]


def test_a_module_that_is_not_installed_is_to_be_installed_for_the_python_of_hasten():
    failure = as_failure(raised_by(import_what_is_not_installed))
    assert isinstance(failure, UserCodeFailed)
    assert failure.what == "ModuleNotFoundError: No module named 'torchtext_of_2019'"
    assert failure.fix.startswith(f"install torchtext_of_2019 for {sys.executable}, which runs hasten, or correct")


def test_errors_of_hasten_stay_what_they_are_and_full_memory_is_told_apart():
    error = JobError("epochs", "is 0", "write 1")
    assert as_failure(error) is error
    memory = as_failure(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried\nmore"))
    assert isinstance(memory, OutOfMemory)
    assert memory.what == "DefaultCPUAllocator: can't allocate memory: you tried"


def test_an_error_without_a_line_of_the_user_is_nobodys_fault_but_ours():
    error = raised_by(mistake)
    while error.__traceback__ is not None and error.__traceback__.tb_next is not None:
        error = error.with_traceback(error.__traceback__.tb_next)
    assert as_failure(error) is None
    assert users_traceback(error) == ""


class Keeping(nn.Linear):
    kept: torch.Tensor | float = 0.0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.kept = kept = super().forward(input) + self.kept
        return kept


@pytest.mark.parametrize(
    ("where", "what", "changes"),
    [
        ("Job.loss", "(?s)second time.* in its backward pass.*at optimizer step 2", {"model": lambda: Keeping(6, 3)}),
        (
            "Job.metrics",
            "classes.* in 'f1'",
            {"metrics": {"f1": MulticlassF1Score(2)}, "valid": (torch.zeros(9, 6), torch.zeros(9, dtype=torch.long))},
        ),
    ],
)
def test_what_a_library_raises_for_a_loss_or_a_metric_is_the_users_mistake(where, what, changes):
    job = small_job(loss=hasten.supervised(nn.functional.cross_entropy), **changes)
    error = raised_by(partial(hasten.train, job, receivers=[]))
    assert error.__traceback__ is not None
    failure = as_failure(error.with_traceback(error.__traceback__.tb_next))  # without the line of this file
    assert isinstance(failure, UserCodeFailed)
    assert failure.where == where
    assert re.search(what, failure.what)


def test_compiled_code_that_cannot_be_loaded_names_the_folder_that_it_is_kept_in(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))

    def load(path: object) -> None:
        raise RuntimeError(f"backend='inductor' raised:\nImportError: {path}: file too short\n\nSet a variable")

    failure = as_failure(raised_by(load, tmp_path / "compiled" / "ab" / "cd.so"))
    assert isinstance(failure, StorageFailed)
    assert failure.where == str(tmp_path / "compiled")
    assert failure.what.endswith("cannot be loaded: ab/cd.so: file too short")
    assert failure.fix.startswith("remove the folder")
    assert isinstance(as_failure(raised_by(load, tmp_path / "elsewhere.so")), UserCodeFailed)


def penalised(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    rows = batch[0].clone().requires_grad_()
    scores = model(rows)
    (slope,) = torch.autograd.grad(scores.sum(), rows, create_graph=True)
    return nn.functional.cross_entropy(scores, batch[1]) + slope.square().sum(1).mean()


def test_a_gradient_penalty_in_an_evaluation_is_named_at_the_users_line():
    valid = small_job().train
    failure = as_failure(raised_by(partial(hasten.train, small_job(loss=penalised, valid=valid), receivers=[])))
    assert isinstance(failure, UserCodeFailed)
    assert failure.what.startswith("evaluations compute no gradients: RuntimeError: element 0 of tensors does not")
    assert failure.where.endswith("in penalised")
    assert "torch.is_grad_enabled()" in failure.fix


def test_one_sample_left_over_for_batch_norm_is_refused_before_the_first_step():
    steps = []

    def loss(model, batch):
        steps.append(torch.is_grad_enabled())
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    job = small_job(model=lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), loss=loss, batch_size=39)
    error = raised_by(partial(hasten.train, job, receivers=[]))
    assert isinstance(error, JobError)
    assert error.field == "batch_size"
    assert "one sample for an epoch's last microbatch, but batch norm needs more than one" in error.what
    assert "drop_last=True" in error.fix
    assert steps == [False]


@pytest.mark.parametrize(
    "changes",
    [
        {"drop_last": True},
        {"epochs": None, "max_steps": 1},
        {"model": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(6, 3))},
    ],
    ids=["dropped", "never reached", "several values a channel"],
)
def test_one_sample_left_over_that_does_no_harm_is_trained_on(changes):
    model = {"model": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))}
    job = small_job(**({"batch_size": 39, "epochs": 1} | model | changes))
    assert hasten.train(job, receivers=[]).steps


def test_looking_for_one_sample_left_over_changes_no_bit_of_training():
    def net() -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (2, 3)), nn.BatchNorm1d(2), nn.Flatten(), nn.Dropout(), nn.Linear(6, 3))

    def first_step(epochs: int) -> dict[str, torch.Tensor]:
        with hasten.prepare(small_job(model=net, batch_size=39, epochs=epochs, max_steps=epochs)) as run:
            run.step(next(run.epoch_batches()))
            return run.weights()

    looked, unlooked = first_step(2), first_step(1)  # which ends before the second step of its epoch
    assert all(torch.equal(looked[name], unlooked[name]) for name in looked)


@pytest.mark.parametrize("folder", ["lib/site-packages/layers", "lib/dist-packages", "target", "own"])
def test_a_library_on_the_path_is_not_the_users_code_wherever_it_is_installed(folder, tmp_path, monkeypatch):
    (tmp_path / "target" / "deep-1.0.dist-info").mkdir(parents=True)  # as of `pip install --target`
    monkeypatch.syspath_prepend(tmp_path / folder)
    library: dict[str, object] = {}
    exec(compile("def fail():\n    raise ValueError('no')\n", str(tmp_path / folder / "deep.py"), "exec"), library)

    def mine() -> None:
        library["fail"]()

    failure = as_failure(raised_by(mine))
    assert isinstance(failure, UserCodeFailed)
    assert failure.where.endswith("in fail" if folder == "own" else "in mine")
