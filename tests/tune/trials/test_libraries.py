"""Which libraries are loaded once for all arms of a job."""

from __future__ import annotations

import pytest

from hasten.tune.trials.libraries import libraries_of

JOB = """
from __future__ import annotations
import numpy as np, os, torch.utils.data
import numpy
from PIL import Image
from . import torch
from .torch import nn
import neighbour
if np:
    import scipy
def job():
    import pandas
"""


def libraries(folder, text: str) -> list[str]:
    (folder / "job.py").write_text(text)
    return libraries_of(f"{folder}/job.py:job")


def test_those_that_are_known_to_be_harmless_and_are_imported_at_the_top(tmp_path):
    assert libraries(tmp_path, JOB) == ["numpy", "torch.utils.data", "PIL"]


def test_one_that_is_not_installed_is_left_to_the_arm(tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.tune.trials.libraries.LOADED_ONCE", frozenset({"not_installed", "torch"}))
    assert libraries(tmp_path, "import torch, not_installed") == ["torch"]


@pytest.mark.parametrize("text", ["import torch\nif", "import torch\0", "# coding: nonsense\nimport torch"])
def test_a_file_that_cannot_be_parsed_gives_none(tmp_path, text):
    assert libraries(tmp_path, text) == []


@pytest.mark.parametrize("job", ["not/there.py:job", "package.module:job", "job", ""])
def test_what_is_no_file_gives_none(job):
    assert libraries_of(job) == []
