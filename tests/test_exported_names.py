"""The public names. To add one is a promise, to drop one breaks somebody: either changes this list, on purpose."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hasten

NAMES = [
    "Augmented",
    "CenterCrop",
    "EarlyStopping",
    "EqualAverage",
    "ExponentialAverage",
    "ImageFolder",
    "Job",
    "Loss",
    "Plan",
    "RandomResizedCrop",
    "Result",
    "Run",
    "Saving",
    "Schedule",
    "Shards",
    "Step",
    "make_plan",
    "prepare",
    "read_plan",
    "read_weights",
    "resume",
    "supervised",
    "train",
    "write_plan",
]


def test_the_public_names_are_these_and_no_others():
    assert sorted(hasten.__all__) == NAMES


def test_every_public_name_has_a_home_and_nothing_else_has_one():
    assert sorted(hasten._HOMES) == sorted(hasten.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_can_be_reached_and_tells_what_it_is(name):
    assert getattr(hasten, name).__doc__


def test_dir_and_a_star_import_show_the_public_names():
    everything: dict[str, object] = {}
    exec("from hasten import *", everything)
    assert set(NAMES) <= set(dir(hasten))
    assert set(NAMES) <= set(everything)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="trian"):
        hasten.trian  # noqa: B018


def test_a_public_name_is_no_module_whatever_was_imported_before():
    """Python makes a loaded room an attribute of the package; it must not take the place of a public name."""
    program = """
import pkgutil, types, hasten
for module in pkgutil.walk_packages(hasten.__path__, "hasten."):
    if not module.name.endswith(("__main__", "_triton")):  # Triton need not be there
        __import__(module.name)
print(*(name for name in hasten.__all__ if isinstance(getattr(hasten, name), types.ModuleType)))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


def test_importing_the_package_does_not_wait_for_torch():
    program = "import sys, hasten; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
