"""The key of a cache changes with what code asks for in modules of the user's own: module.function, module.SIZE."""

from __future__ import annotations

import importlib
import io
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hasten.data.cache_key import key_of
from hasten.errors import DataFailed
from kept_samples import key, made

pytestmark = pytest.mark.trap(41)

HELPER = """
import io
import numpy as np
from pathlib import Path
from users_helpers import inner

SIZE = 3
FOLDER = Path("photos")
OF_NOBODY = 1
handle = io.BytesIO()

class Config:
    scale = 2

def _rows():
    return np.load("data.npy")

def read(index):
    return inner.passed(_rows()[index, :SIZE] * Config.scale, sorted(FOLDER.iterdir()))

def written(index):
    return handle.write(index)
"""
INNER = """
LEVEL = 1
def passed(rows, names):
    return rows * LEVEL
"""


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of a package of the user's own, imported, and the present folder with the files that it reads."""
    package = tmp_path / "users_helpers"
    for path, text in (("__init__.py", ""), ("outer.py", HELPER), ("inner.py", INNER)):
        package.mkdir(exist_ok=True)
        (package / path).write_text(text)
    (tmp_path / "photos").mkdir()
    np.save(tmp_path / "data.npy", np.eye(4))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("users_helpers.outer")
    for name in [name for name in sys.modules if name.partition(".")[0] == "users_helpers"]:
        del sys.modules[name]


USES: dict[str, Any] = {
    "by its name": lambda helper: made("def transform(x): return helper.read(x)", helper=helper),
    "through its package": lambda helper: made(
        "import users_helpers.outer\ndef transform(x): return users_helpers.outer.read(x)"
    ),
    "without a call": lambda helper: made("def transform(x): return map(helper.read, x)", helper=helper),
    "under another name": lambda helper: made("def transform(x):\n one = helper\n return one.read(x)", helper=helper),
    "in a function inside": lambda helper: made("def transform(x): return (lambda: helper.read(x))()", helper=helper),
    "closed over": lambda helper: made("def around(h):\n return lambda x: h.read(x)", "around")(helper),
    "by a method": lambda helper: made("class T:\n def __call__(s, x): return helper.read(x)", "T", helper=helper)(),
    "held": lambda helper: made("class T:\n def __init__(s, h): s.h = h\n def go(s, x): return s.h.read(x)", "T")(
        helper
    ),
    "handed on": lambda helper: (helper, made("def transform(x, module): return module.read(x)")),
    "in a set": lambda helper: {made("def transform(x): return helper.read(x)", helper=helper)},
}


def other_file(helper: ModuleType) -> None:
    np.save("data.npy", np.zeros((4, 4)))
    os.utime("data.npy", ns=(0, 12345))


def other_file_in_a_folder(helper: ModuleType) -> None:
    Path("photos/new.jpg").write_bytes(b"1")


def set_to_another(name: str, value: object) -> Any:
    def change(helper: Any) -> None:
        setattr(helper, name, value)

    change.__name__ = f"another_{name}"
    return change


def other_class_value(helper: Any) -> None:
    helper.Config.scale = 5


def other_value_in_the_next_module(helper: Any) -> None:
    helper.inner.LEVEL = 2


def other_function_in_the_next_module(helper: Any) -> None:
    helper.inner.passed = lambda rows, names: rows


CHANGES = [
    *(other_file, other_file_in_a_folder, set_to_another("SIZE", 64), set_to_another("FOLDER", Path("data.npy"))),
    *(set_to_another("read", abs), set_to_another("_rows", abs), set_to_another("Config", None), other_class_value),
    *(other_value_in_the_next_module, other_function_in_the_next_module),
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_code_reaches_through_a_module_counts(helper, use, change):
    before = key(USES[use](helper))
    assert key(USES[use](helper)) == before
    change(helper)
    assert key(USES[use](helper)) != before


@pytest.mark.parametrize("use", USES)
def test_what_nobody_asks_a_module_for_does_not_count_and_is_not_refused(helper, use):
    before = key(USES[use](helper))
    helper.OF_NOBODY, helper.handle = 2, io.BytesIO(b"2")
    assert key(USES[use](helper)) == before


def test_what_cannot_be_told_is_refused_by_its_name_in_the_module(helper):
    with pytest.raises(DataFailed, match=r"^users_helpers\.outer\.handle is .*BytesIO"):
        key(made("def transform(x): return helper.handle", helper=helper))
    with pytest.raises(DataFailed, match=r"^handle, which users_helpers\.outer\.written uses, is .*BytesIO"):
        key(made("def transform(x): return helper.written(x)", helper=helper))


def test_a_data_set_s_own_methods_ask_too(helper):
    data = made(
        "class D:\n def __len__(s): return 3\n def __getitem__(s, i): return helper.read(i)", "D", helper=helper
    )
    before = key_of(data(), 1)
    helper.SIZE = 64
    assert key_of(data(), 1) != before
