"""Libraries that a job, a script and its own modules import are loaded once for all trials, where that is harmless."""

from __future__ import annotations

from pathlib import Path

from hasten.tuning.trials import preloaded_libraries
from hasten.tuning.trials.preloaded_libraries import libraries_of

JOB = """
from __future__ import annotations
import numpy as np
import torch.utils.data
import numpy
from PIL import Image
from . import torch
import neighbour
if np:
    import scipy
def job():
    import pandas
"""


def libraries(folder: Path, text: str) -> list[str]:
    (folder / "job.py").write_text(text)
    return libraries_of(f"{folder}/job.py:job")


def test_libraries_that_are_known_to_be_harmless_and_are_imported_at_the_top_are_loaded_once(tmp_path, monkeypatch):
    assert libraries(tmp_path, JOB) == ["numpy", "torch.utils.data", "PIL"]
    monkeypatch.setattr(preloaded_libraries, "LOADED_ONCE", frozenset({"not_installed", "torch"}))
    assert libraries(tmp_path, "import torch\nimport not_installed") == ["torch"]


def test_so_are_those_of_the_jobs_own_modules(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("from package import data\nfrom . import data\nimport sklearn\n")
    (tmp_path / "package" / "data.py").write_text("import scipy.stats\nfrom .inner import something\n")
    (tmp_path / "neighbour.py").write_text("from package import (inner, nothing)\n")
    assert libraries(tmp_path, JOB) == ["numpy", "torch.utils.data", "PIL", "sklearn", "scipy.stats"]


def test_a_file_that_cannot_be_read_gives_none():
    for job in ("not/there.py:job", "package.module:job", "job", ""):
        assert libraries_of(job) == []
