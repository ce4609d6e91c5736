"""The rooms of the package, its budgets, and what its code never does."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain

import pytest

from hasten.techniques import ALL
from shape import disk, handlers, names, rooms, tags, unsafe, words
from shape import files as shapes
from shape.source import Source, files_in, sources

PACKAGE = sources("src")
TECHNIQUES = [source for source in PACKAGE if source.is_technique]
TOOLS = sources("scripts", "examples", "bench")
TESTS = sources("tests")

REQUIRED_TRAPS = {*range(1, 52)} - {20}
LAST_TRAP = 51

# Rooms that hold a check; each set is to become ROOMS.
ROOMS = {source.room for source in PACKAGE}
READ_NO_PRIVATE_NAMES = ROOMS - {"measure", "parallel"}
SAY_NO_OLD_WORDS = ROOMS - {"checkpoint", "data", "facts", "parallel", "training"}
SMALL_FOLDERS = ROOMS - {"facts"}
CROWDED_TESTS = ("tests/parallel/", "tests/training/")


def of(held: set[str]) -> list[Source]:
    return [source for source in PACKAGE if source.room in held]


def by_folder(files: list[Source]) -> pytest.MarkDecorator:
    """One test for each folder of them: for each file, collecting tests would take longer than they do."""
    folders: dict[str, list[Source]] = {}
    for source in files:
        folders.setdefault(source.path.rpartition("/")[0], []).append(source)
    return pytest.mark.parametrize("files", folders.values(), ids=folders.keys())


@by_folder(PACKAGE)
def test_imports_point_one_way(files):
    assert_none(chain.from_iterable(map(rooms.check_rooms, files)))


@by_folder(PACKAGE)
def test_techniques_do_not_know_each_other(files):
    assert_none(fault for source in files for fault in rooms.check_technique_files(source, TECHNIQUES))


@by_folder(PACKAGE)
def test_the_package_refuses_what_is_unsafe(files):
    assert_none(chain.from_iterable(map(unsafe.check_refused, files)))


@by_folder(PACKAGE)
def test_the_package_never_goes_out_to_the_network(files):
    assert_none(chain.from_iterable(map(unsafe.check_network, files)))


@by_folder(PACKAGE)
@pytest.mark.fault("clock jump")
def test_only_who_gives_a_reason_reads_a_clock_that_can_be_set(files):
    assert_none(chain.from_iterable(map(unsafe.check_calendar, files)))


def test_who_may_read_the_calendar_does():
    assert set(unsafe.MAY_READ_THE_CALENDAR) == {each.path for each in PACKAGE if unsafe.reads_the_calendar(each)}


@by_folder(PACKAGE)
def test_only_one_file_changes_the_disk(files):
    assert_none(chain.from_iterable(map(disk.check_writes, files)))


@by_folder(PACKAGE)
def test_no_signal_handler_raises(files):
    assert_none(chain.from_iterable(map(handlers.check_handlers, files)))


@by_folder(of(READ_NO_PRIVATE_NAMES))
def test_nobody_reads_a_private_name_of_another_object(files):
    assert_none(chain.from_iterable(map(names.check_private_names, files)))


@by_folder(of(SAY_NO_OLD_WORDS))
def test_strings_and_docstrings_are_plain_english(files):
    assert_none(chain.from_iterable(map(words.check_words, files)))


def test_imports_form_no_circle():
    assert_none(rooms.check_circles(PACKAGE))


def test_folders_are_small():
    small = [path for path in files_in("src") if Source(path, "").room in SMALL_FOLDERS]
    small += [path for path in files_in("tests") if not path.startswith(CROWDED_TESTS)]
    assert_none(shapes.check_folders(small, [technique.name for technique in ALL]))


def test_a_files_name_occurs_once():
    assert_none(shapes.check_basenames(PACKAGE))


@by_folder(PACKAGE + TOOLS)
def test_every_module_says_what_it_is_for(files):
    assert_none(chain.from_iterable(map(shapes.check_docstring, files)))


@by_folder(PACKAGE + TOOLS + TESTS)
def test_files_and_functions_stay_in_their_budget(files):
    assert_none(chain.from_iterable(map(shapes.check_budgets, files)))


@by_folder(TESTS)
def test_no_test_sleeps(files):
    assert_none(chain.from_iterable(map(handlers.check_sleeps, files)))


def test_the_walk_finds_the_code():
    """All of the tests above hold for an empty list; this one does not."""
    assert {"errors", "facts", "techniques", "training"} <= {source.room for source in PACKAGE}
    assert any(source.path == "tests/test_shape.py" for source in TESTS)
    assert TECHNIQUES


def test_every_technique_file_is_enrolled_under_its_own_name():
    files = {source.module.rpartition(".")[2] for source in TECHNIQUES}
    assert sorted(technique.name for technique in ALL) == sorted(files)


def test_a_technique_is_defined_in_the_file_of_its_name():
    for technique in ALL:
        assert technique.apply.__module__ == f"hasten.techniques.{technique.name}"


def test_every_required_trap_has_a_test_and_no_other_is_tagged():
    tagged = {trap for source in TESTS if "mark.trap" in source.text for trap in tags.traps(source)}
    assert tagged >= REQUIRED_TRAPS, f"no test is tagged with trap {sorted(REQUIRED_TRAPS - tagged)}"
    assert tagged <= set(range(1, LAST_TRAP + 1))


@pytest.mark.parametrize("room", ["facts", "report", "cli", "errors", "__init__"])
def test_what_a_terminal_needs_loads_without_torch(room):
    modules = [source.module for source in PACKAGE if source.room == room]
    assert modules, f"nothing is called {room}"
    assert "torch" not in loaded_by(modules)


def loaded_by(modules: list[str]) -> set[str]:
    """The top-level names in sys.modules once a new interpreter has imported these modules."""
    program = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def assert_none(faults):
    found = [str(fault) for fault in faults]
    assert not found, "\n".join(found)
