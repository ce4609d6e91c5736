"""The design that all commands share: labels, wrapping, --quiet, --json, and notebooks."""

from __future__ import annotations

import builtins
import io
import json
import math
import sys
from types import ModuleType
from typing import Any

import pytest

from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import MOST_COLUMNS, WIDE_LABEL, Output
from hasten.report.terminal.progress_bar import ProgressBar

RESULT = Sentence(headline="1.80× faster: 13.0 s → 7.3 s", small_print="95 % interval 1.71–1.89, 12 pairs")
LONG = "a text of many words that says what is known " * 6
COMMAND = "hasten train digits.py:job --plan plan.toml --set 'name=a b' " + " ".join(
    f"--set option_{number}=value" for number in range(6)
)


def shown(write: Any) -> str:
    stream = io.StringIO()
    write(Output(stream))
    return stream.getvalue()


def test_a_result_has_the_same_labels_everywhere():
    text = shown(lambda output: output.result(RESULT, [("plan", "plan.toml")], "hasten train digits.py:job"))
    assert text.splitlines() == [
        "",
        "  verdict   1.80× faster: 13.0 s → 7.3 s",
        "  why       95 % interval 1.71–1.89, 12 pairs",
        "  plan      plan.toml",
        "  next      hasten train digits.py:job",
    ]


def test_all_blocks_of_a_command_with_long_labels_have_one_column():
    out = io.StringIO()
    output = Output(out, WIDE_LABEL)
    output.note("machine", "2 cores")
    output.titled("", [("optimizer", "Adam")])
    output.result(RESULT, [("not proven", "compile")], "hasten run train.py")
    values = ("2 cores", "Adam", "1.80×", "95 %", "compile", "hasten")
    assert {line.index(each) for line in out.getvalue().splitlines() for each in values if each in line} == {14}


def test_a_long_text_continues_below_itself_and_a_command_can_be_copied():
    text = shown(lambda output: output.titled(LONG, [("why", LONG), ("next", COMMAND)]))
    assert max(map(len, text.splitlines())) <= MOST_COLUMNS
    assert " ".join(text.replace("\\\n", " ").split()) == f"{LONG}why {LONG}next {COMMAND}"
    copied = text.partition("  next ")[2]
    assert copied.count(" \\\n            --set") == copied.count("\n") - 1 > 0


def test_one_word_that_is_longer_than_a_line_is_not_broken():
    path = "/folder" * 20
    assert path in shown(lambda output: output.note("weights", path))


def answered(capsys: pytest.CaptureFixture[str], **options: bool) -> tuple[str, str]:
    with CommandOutput(**options) as output:
        output.header("Profiling digits.py:job")
        output.machine("2 cores")
        sys.stdout.write("of the job\n")
        bar = output.progress("profiling")
        bar(1, 2)
        output.table(["layer  share"])
        output.result(RESULT, [("plan", "plan.toml")], "hasten train", {"plan": "plan.toml", "loss": math.nan})
    return capsys.readouterr()


@pytest.fixture(autouse=True)
def all_work_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.report.terminal.progress_bar.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("hasten.report.terminal.progress_bar.REFRESH_SECONDS", 0.0)


def test_a_command_shows_its_header_its_tables_and_its_result(capsys: pytest.CaptureFixture[str]):
    out, err = answered(capsys)
    assert out.startswith("Profiling digits.py:job\n  machine   2 cores\n")
    assert out.index("  layer  share\n") < out.index("  verdict ")
    assert "profiling" in err


def test_quiet_is_the_same_without_header_and_progress(capsys: pytest.CaptureFixture[str]):
    whole, quiet = answered(capsys), answered(capsys, quiet=True)
    assert quiet == (whole[0].removeprefix("Profiling digits.py:job\n  machine   2 cores\n"), "")


def test_json_is_one_object_and_what_the_job_prints_is_elsewhere(capsys: pytest.CaptureFixture[str]):
    out, err = answered(capsys, as_json=True)
    assert json.loads(out) == {
        "sentence": RESULT.headline,
        "why": RESULT.small_print,
        "plan": "plan.toml",
        "loss": "NaN",
        "next": "hasten train",
    }
    assert "of the job" in err
    assert "profiling" in err


# ── notebooks ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Cell(list[str]):
    """What a notebook's cell shows, as text."""

    def display(self, *drawn: Any, display_id: bool = False, **_: Any) -> Handle:
        self.extend(each._repr_mimebundle_((), ())["text/plain"] for each in drawn)
        return Handle(self, len(self) - 1)


class Handle:
    def __init__(self, cell: Cell, place: int) -> None:
        self._cell, self._place = cell, place

    def update(self, drawn: Any) -> None:
        self._cell[self._place] = drawn._repr_mimebundle_((), ())["text/plain"]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    found = Cell()
    module = ModuleType("IPython.display")
    module.display = found.display  # type: ignore[attr-defined]
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return found


def test_a_notebook_gets_drawn_lines_and_one_output_that_is_replaced(cell: Cell, capsys: pytest.CaptureFixture[str]):
    bar = ProgressBar("evaluating")
    bar(1, 4)
    bar(2, 4)
    assert [text for text in cell if "50 %" in text] == cell
    bar.close()
    assert [text.strip() for text in cell] == [""]
    Output(sys.stdout).result(RESULT, [], "hasten train")
    assert RESULT.headline in cell[-1]
    assert capsys.readouterr() == ("", "")


def test_a_file_that_is_written_from_a_notebook_is_plain(cell: Cell):
    assert RESULT.headline in shown(lambda output: output.result(RESULT, [], ""))
    assert cell == []
