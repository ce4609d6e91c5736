"""Files, functions and folders that are too large, or have no name of their own; and innocent neighbours."""

from __future__ import annotations

import pytest

from shape.files import check_basenames, check_budgets, check_folders
from shape.planted import found
from shape.source import Source


@pytest.mark.parametrize("text", ["TECHNIQUE = Technique()", "TECHNIQUE: Technique = Technique()"])
def test_a_technique_is_known_by_its_record(text):
    assert Source("src/hasten/techniques/precision.py", text).is_technique
    assert not Source("src/hasten/training/step.py", text).is_technique
    assert not Source("src/hasten/techniques/precision.py", "def f():\n    TECHNIQUE = 1").is_technique


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("src/hasten/training/step.py", 400),
        ("src/hasten/techniques/precision.py", 150),
        ("src/hasten/doctor/rules/slow_copy.py", 150),
        ("tests/test_step.py", 400),
    ],
)
def test_a_file_over_its_budget_is_caught(path, allowed):
    text = "TECHNIQUE = 1\n" + "x = 1\n" * (allowed - 1)
    assert found(check_budgets, text, path) == []
    assert found(check_budgets, text + "x = 1\n", path) == [allowed + 1]


def test_a_function_longer_than_a_screen_is_caught():
    body = "    x = 1\n" * 59
    assert found(check_budgets, "def short():\n" + body) == []
    assert found(check_budgets, "def long():\n" + body + "    x = 1\n") == [1]
    assert found(check_budgets, "class C:\n async def long():\n" + body + "    x = 1\n") == [2]


def crowded(folder: str, count: int) -> list[str]:
    return [f"{folder}/file_{number}.py" for number in range(count)]


def test_a_folder_with_a_file_too_many_is_caught():
    full = crowded("src/hasten/data", 15)
    assert [*check_folders([*full, *crowded("src/hasten/data/cache", 15)], [])] == []
    for one_more in ("src/hasten/data/__init__.py", "src/hasten/data/decode.cpp"):
        assert [fault.source.path for fault in check_folders([*full, one_more], [])] == ["src/hasten/data"]


def test_a_table_of_rules_techniques_or_their_tests_may_have_any_number_of_entries():
    names = [f"file_{number}" for number in range(40)]
    listed = crowded("src/hasten/techniques", 40) + crowded("src/hasten/doctor/rules", 40)
    assert [*check_folders([*listed, *(f"tests/techniques/test_{name}.py" for name in names)], names)] == []
    assert [*check_folders(crowded("src/hasten/techniques", 40), names[:24])] != []


def test_a_name_that_two_files_of_the_package_have_is_caught():
    def named(*paths: str, text: str = "") -> list[str]:
        return [fault.source.path for fault in check_basenames([Source(f"src/hasten/{path}", text) for path in paths])]

    assert named("data/reading.py", "checkpoint/reading.py") == ["src/hasten/checkpoint/reading.py"]
    assert named("data/__init__.py", "checkpoint/__init__.py", "data/reading.py", "checkpoint/state.py") == []
    assert named("techniques/cache.py", "techniques/more/cache.py", text="TECHNIQUE = 1") == []
