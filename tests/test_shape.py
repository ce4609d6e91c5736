"""The rooms of the package, its budgets, and what its code never does."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterable

import pytest

from hasten.techniques import ALL
from shape import disk, handlers, names, rooms, tags, unsafe, words
from shape import files as shapes
from shape.source import Fault, Source, files_in, sources

PACKAGE = sources("src")
TECHNIQUES = [source for source in PACKAGE if source.is_technique]
TOOLS = sources("scripts", "examples", "bench")
TESTS = sources("tests")

REQUIRED_TRAPS = {*range(1, 52)} - {20}
LAST_TRAP = 51

# Rooms that hold a check; each set is to become ROOMS.
ROOMS = {source.room for source in PACKAGE}
SAY_NO_OLD_WORDS = ROOMS - {"data"}
CROWDED_TESTS = ("tests/training/",)

Check = Callable[[Source], Iterable[Fault]]


@pytest.fixture(autouse=True)
def without_collections():
    """Syntax trees are so many objects that looking for garbage among them takes longer than all checks."""
    gc.disable()
    yield
    gc.enable()


def checks_of(source: Source) -> list[Check]:
    """What a file of the package must keep to."""
    return [
        rooms.check_rooms,
        lambda each: rooms.check_technique_files(each, TECHNIQUES),
        unsafe.check_arguments,
        disk.check_writes,
        disk.check_reads,
        handlers.check_handlers,
        shapes.check_budgets,
        names.check_private_names,
        *([words.check_words] if source.room in SAY_NO_OLD_WORDS else []),
    ]


def test_the_package_keeps_to_its_rules():
    """One test for all files and checks, so that one process parses the package, and each file once."""
    assert_none(fault for source in PACKAGE for check in checks_of(source) for fault in check(source))
    assert_none(rooms.check_circles(PACKAGE))


def test_tools_and_tests_keep_to_theirs():
    assert_none(fault for source in TOOLS + TESTS for fault in shapes.check_budgets(source))
    assert_none(fault for source in TESTS for fault in handlers.check_sleeps(source))


def test_folders_are_small():
    small = files_in("src") + [path for path in files_in("tests") if not path.startswith(CROWDED_TESTS)]
    assert_none(shapes.check_folders(small, [technique.name for technique in ALL]))


def test_a_files_name_occurs_once():
    assert_none(shapes.check_basenames(PACKAGE))


def test_the_walk_finds_the_code():
    """All of the tests above hold for an empty list; this one does not."""
    assert {"errors", "facts", "techniques", "training"} <= {source.room for source in PACKAGE}
    assert any(source.path == "tests/test_shape.py" for source in TESTS)
    assert TECHNIQUES


def test_every_technique_file_is_enrolled_under_its_own_name():
    files = {source.module.rpartition(".")[2] for source in TECHNIQUES}
    assert sorted(technique.name for technique in ALL) == sorted(files)
    for technique in ALL:
        assert technique.apply.__module__ == f"hasten.techniques.{technique.name}"


def test_every_required_trap_has_a_test_and_no_other_is_tagged():
    tagged = {trap for source in TESTS if "mark.trap" in source.text for trap in tags.traps(source)}
    assert tagged >= REQUIRED_TRAPS, f"no test is tagged with trap {sorted(REQUIRED_TRAPS - tagged)}"
    assert tagged <= set(range(1, LAST_TRAP + 1))


def test_what_a_terminal_needs_loads_without_torch():
    """In one new interpreter."""
    light = {"facts", "report", "cli", "errors", "regular_files", "__init__"}
    modules = [source.module for source in PACKAGE if source.room in light]
    assert light == {source.room for source in PACKAGE if source.room in light}
    program = f"import sys, {', '.join(modules)}, hasten.measure.loss_equivalence; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def assert_none(faults: Iterable[Fault]):
    found = [str(fault) for fault in faults]
    assert not found, "\n".join(found)
