"""Whose fault an exception is."""

from __future__ import annotations

import torch
from torch import nn

from hasten.errors import JobError, OutOfMemory, StorageFailed, UserCodeFailed
from hasten.training.failures.as_failure import as_failure
from hasten.users_code import users_traceback


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
