"""The key of a cache changes with the modules that code of the user's own imports, and with those that they import."""

from __future__ import annotations

import itertools
import os
import sys

import pytest

from kept_samples import key, made

pytestmark = pytest.mark.trap(41)

TIMES = itertools.count(10**18, 10**9)


def stamp(path, text):
    """A file with this content, and a time that no other has."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(0, next(TIMES)))


PACKAGE = {
    "__init__.py": "from .outer import scale\n",
    "outer.py": "from . import inner\nfrom .sizes import SIZE\nimport numpy\ndef scale(x): return inner.scaled(x, 3)\n",
    "inner.py": "def scaled(x, by):\n from users_pack.deep import far\n return far.ther(x * by)\n",
    "sizes.py": "SIZE = 3\n",
    "deep/__init__.py": "",
    "deep/far.py": "from .. import outer\nfrom ..circle import *\ndef ther(x): return x\n",
    "circle.py": "import users_pack.outer\n",
    "unused.py": "raise AssertionError('imported')\n",
    "unused_deep/__init__.py": "raise AssertionError('imported')\n",
    "unused_deep/far.py": "",
}
USES = {
    "as a module": "import users_pack.outer as pack\ndef transform(x): return pack.scale(x)",
    "inside": "def transform(x):\n from users_pack.outer import scale\n return scale(x)",
    "relatively": "__package__ = 'users_pack'\ndef transform(x):\n from .outer import scale\n return scale(x)",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in PACKAGE.items():
        stamp(tmp_path / "users_pack" / name, text)
    yield tmp_path / "users_pack"
    for name in [name for name in sys.modules if name.partition(".")[0] == "users_pack"]:
        del sys.modules[name]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("changed", ["__init__.py", "outer.py", "inner.py", "sizes.py", "deep/far.py", "circle.py"])
def test_modules_that_modules_of_the_user_s_own_import_count_one_after_another(package, use, changed):
    function = made(USES[use])
    before = key(function)
    assert key(function) == before
    stamp(package / changed, PACKAGE[changed])
    assert key(function) != before


@pytest.mark.parametrize("use", USES)
def test_modules_that_nobody_imports_do_not_count(package, use):
    function = made(USES[use])
    before = key(function)
    stamp(package / "unused.py", "")
    assert key(function) == before


@pytest.mark.parametrize("changed", ["far.py", "__init__.py"])
def test_to_look_for_imports_runs_no_code_and_finds_the_packages_around_them(package, changed):
    function = made("def transform(x):\n import users_pack.unused_deep.far as far\n return far.ther(x)")
    before = key(function)
    assert not [name for name in sys.modules if name.startswith("users_pack")]
    stamp(package / "unused_deep" / changed, "")
    assert key(function) != before


def test_the_key_is_the_same_before_and_after_a_module_was_imported(package):
    function = made(USES["inside"])
    before = key(function)
    import users_pack.deep.far  # pyright: ignore[reportMissingImports]  # noqa: F401

    assert key(function) == before
