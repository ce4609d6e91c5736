"""Libraries that a job, a script and its own modules import are loaded once for all trials, where that is harmless."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.tuning.trials import preloaded_libraries
from hasten.tuning.trials.preloaded_libraries import libraries_of, statement_of

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
    assert libraries(tmp_path, JOB) == ["numpy", "torch.utils.data", "PIL:Image"]
    monkeypatch.setattr(preloaded_libraries, "LOADED_ONCE", frozenset({"not_installed", "torch"}))
    assert libraries(tmp_path, "import torch\nimport not_installed") == ["torch"]


def test_so_are_those_of_the_jobs_own_modules(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("from package import data\nfrom . import data\nimport sklearn\n")
    (tmp_path / "package" / "data.py").write_text("import scipy.stats\nfrom .inner import something\n")
    (tmp_path / "neighbour.py").write_text("from package import (inner, nothing)\n")
    assert libraries(tmp_path, JOB) == ["numpy", "torch.utils.data", "PIL:Image", "sklearn", "scipy.stats"]


def test_a_file_that_cannot_be_read_gives_none():
    for job in ("not/there.py:job", "package.module:job", "job", ""):
        assert libraries_of(job) == []


def test_a_library_that_reads_variables_is_loaded_once_where_no_source_sets_one(tmp_path, monkeypatch):
    monkeypatch.setattr(preloaded_libraries, "READ_SETTINGS", frozenset({"transformers"}))
    imports = "import os\nfrom transformers import (\n    Trainer,\n    set_seed,\n)\n"
    reads = (
        "RANK = os.environ.get('RANK', os.getenv('R'))\nif 'A' not in os.environ or os.environ['A'] == '/':\n    pass\n"
    )
    shared = ["transformers:Trainer", "transformers:set_seed"]
    pytest.importorskip("transformers")
    assert libraries(tmp_path, imports + reads) == shared
    for sets in (
        "os.environ['HF_HUB_OFFLINE'] = '1'",
        "os.environ.setdefault('HF_HOME', 'cache')",
        "os.environ.update(HF_HOME='cache')",
        "os.environ |= {'HF_HOME': 'cache'}",
        "os.putenv('HF_HOME', 'cache')",
        "load_dotenv()",
        "del os.environ['HF_HOME']",
        "names = ['HF_HOME']\nos.environ[names[0]] = 'cache'",
        "os.environ['HF_HOME'] += '/mine'",
        "os.environ[\n    'HF_HOME'\n] = 'cache'",
        "from os import environ as env\nenv['HF_HOME'] = 'cache'",
    ):
        assert libraries(tmp_path, f"{imports}{sets}\n") == []
    assert libraries(tmp_path, f"{imports}import torch\nos.environ['A'] = '1'\n") == ["torch"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert libraries(tmp_path, imports) == []


@pytest.mark.parametrize("imports", ["import pkg.data", "def job():\n    from pkg import data"])
def test_own_packages_that_lie_elsewhere_set_variables_too(tmp_path, monkeypatch, imports):
    """As `pip install -e` finds them; and those that a function imports."""
    pytest.importorskip("transformers")
    (tmp_path / "src" / "pkg").mkdir(parents=True)
    (tmp_path / "src" / "pkg" / "__init__.py").write_text("import os\nos.environ['HF_HOME'] = 'cache'\n")
    (tmp_path / "src" / "pkg" / "data.py").write_text("import scipy\n")
    (tmp_path / "scripts").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    assert libraries(tmp_path / "scripts", f"import transformers\n{imports}\n") == ["scipy"]


def test_no_library_is_loaded_that_would_find_an_installed_one_for_a_module_of_the_users_own(tmp_path):
    """Libraries that read variables import each other."""
    pytest.importorskip("transformers")
    (tmp_path / "evaluate.py").write_text("")
    job = "import transformers\nimport numpy\ndef job():\n    import evaluate\n"
    assert libraries(tmp_path, job) == ["numpy"]


def test_a_module_of_the_users_own_is_no_library_of_its_name(tmp_path):
    (tmp_path / "sklearn.py").write_text("")
    (tmp_path / "scipy").mkdir()
    (tmp_path / "scipy" / "__init__.py").write_text("")
    assert libraries(tmp_path, "import sklearn\nimport scipy.stats\nimport numpy\n") == ["numpy"]


def test_what_is_loaded_late_is_imported_by_its_name():
    assert [*map(statement_of, ("numpy", "torch.utils.data", "transformers:Trainer"))] == [
        "import numpy",
        "import torch.utils.data",
        "from transformers import Trainer",
    ]
