"""The public names. To add one is a promise, to drop one breaks somebody: either changes this list, on purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hasten

NAMES = [
    "Augmented",
    "Best",
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
    "evaluate",
    "make_plan",
    "prepare",
    "read_plan",
    "read_weights",
    "resume",
    "supervised",
    "train",
    "tune",
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


def test_a_public_name_is_no_module():
    """Python makes a loaded room an attribute of the package, where it would take the place of a public name."""
    rooms = {path.stem for path in Path(hasten.__file__).parent.iterdir()}
    assert rooms.isdisjoint(NAMES)


def test_importing_the_package_does_not_wait_for_torch():
    program = "import sys, hasten; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_command_imports_no_other_command():
    program = (
        "import sys, hasten.cli; sys.argv[1:] = ['run', '--help']\ntry: hasten.cli.main()\nfinally: print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    commands = {each for each in loaded if each.startswith("hasten.cli") and each.endswith("_command")}
    assert commands == {"hasten.cli.run_command"}
