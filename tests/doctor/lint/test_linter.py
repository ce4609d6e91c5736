"""Files are looked at, never run; what cannot be read is told and stops nothing; findings can be silenced."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.doctor.lint.linter import lint
from hasten.doctor.lint.suppression import not_silenced
from hasten.doctor.reading.steps.training_steps import Training
from hasten.doctor.registry import selected
from hasten.errors import Misconfigured, Unreadable
from hasten.facts.finding import Finding, Severity
from support.doctor.snippets import CORPUS, lint_text

SCRIPTS = [path for path in CORPUS if path.suffix == ".py"]
WRONG = "optimizer.zero_grad(set_to_none=False)"


def codes(text: str) -> list[str]:
    return [each.code for each in lint_text(text, "script.py")]


def test_folders_are_looked_into_but_for_what_is_hidden_or_installed(tmp_path):
    for name in ("a.py", "b/c.py", ".hidden/d.py", "site-packages/e.py", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(WRONG)
    looked = list(lint([tmp_path]))
    assert [each.path for each in looked] == [str(tmp_path / "a.py"), str(tmp_path / "b" / "c.py")]
    assert all(each.findings for each in looked)
    named = [tmp_path / "a.py", tmp_path, tmp_path / "b" / ".." / "a.py"]
    assert [each.path for each in lint(named)] == [str(tmp_path / "a.py"), str(tmp_path / "b" / "c.py")]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"def f(:", "is not valid Python"),
        (b"x = '\xff'", "cannot be read"),
        (b"x = 1\0", "cannot be parsed|is not valid Python"),
        (b"x = [" + b"1," * 5_000 + b"]", "10,006 characters in a line"),
        (b"x = 1\n" * 200_000, "1,200,000 characters of code"),
        (b"x" + b".a" * 4_900, "cannot be parsed|is not valid Python"),
    ],
    ids=["broken", "encoding", "null", "a line", "a file", "attributes"],
)
def test_a_file_that_cannot_be_read_is_told_and_the_others_are_looked_at(tmp_path, content, what):
    (tmp_path / "bad.py").write_bytes(content)
    (tmp_path / "good.py").write_text(WRONG)
    bad, good = lint([tmp_path])
    assert [each.code for each in good.findings] == ["H303"]
    assert bad.unreadable is not None
    assert any(each in bad.unreadable.what for each in what.split("|"))


def unreadable(*paths: Path) -> list[str]:
    return [each.unreadable.what for each in lint(paths) if each.unreadable is not None]


def test_a_folder_that_cannot_be_read_is_reported(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    assert unreadable(tmp_path) == ["cannot be read: Permission denied"]


def test_what_is_no_file_is_told_and_not_waited_for(tmp_path):
    pipe, loop = tmp_path / "pipe.py", tmp_path / "loop.py"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    assert list(lint([tmp_path])) == []
    found = unreadable(pipe, tmp_path / "none.py", loop, tmp_path / ("x" * 300))
    assert {"cannot be read: it is a named pipe, not a file", "does not exist"} <= {*found}
    assert len(found) == 4


def test_a_rule_that_fails_on_a_file_is_told_and_stops_no_other_file(tmp_path, monkeypatch):
    def fail(self):
        raise KeyError("x")

    (tmp_path / "a.py").write_text(WRONG)
    monkeypatch.setattr(Training, "steps", property(fail))
    (told,) = unreadable(tmp_path)
    assert "fails on it with KeyError" in told


@pytest.mark.parametrize(
    ("line", "silenced"),
    [
        (f"{WRONG}  # hasten: ignore [H3]", True),
        (f"{WRONG}  # hasten: ignored by nobody", False),
        (f's = "# hasten: ignore"; {WRONG}', False),
        ("x = f(\n    optimizer.zero_grad(set_to_none=False),\n)  # hasten: ignore[H303]", True),
        ("if a:  # hasten: ignore\n    optimizer.zero_grad(set_to_none=False)", False),
    ],
)
def test_a_comment_silences_what_it_names_on_the_statement_that_it_stands_at(line, silenced):
    assert codes(line) == ([] if silenced else ["H303"])


def test_a_comment_silences_what_a_run_shows_at_its_line(tmp_path):
    file = tmp_path / "train.py"
    silenced = "    y = sum(\n        each.item() for each in x\n    )  # hasten: ignore[H705]\n"
    file.write_text(f"def forward(x):\n{silenced}    return y\n")
    finding = Finding(code="H705", rule="reads", severity=Severity.SLOW, message="", fix="", path=str(file), line=3)
    others = [replace(finding, line=5), replace(finding, code="H704"), replace(finding, path="none.py")]
    others.append(replace(finding, path="", line=0))
    assert not_silenced([finding, *others]) == others


@pytest.mark.parametrize("kind", ["except", "except*"])
def test_a_comment_at_the_end_of_a_block_silences_nothing_inside_of_it(tmp_path, kind):
    file = tmp_path / "train.py"
    file.write_text(f"try:\n    a()\n{kind} ValueError:\n    b()  # hasten: ignore\n")
    found = [
        Finding(code="H705", rule="reads", severity=Severity.SLOW, message="", fix="", path=str(file), line=line)
        for line in (2, 4)
    ]
    assert not_silenced(found) == found[:1]


def test_columns_count_characters_and_lines_are_those_of_python():
    (found,) = lint_text(f"x = 1\f\ny = 'äöü'; {WRONG}", "script.py")
    assert (found.line, found.column, found.source) == (2, 12, f"y = 'äöü'; {WRONG}")


def test_rules_are_chosen_by_codes_and_their_beginnings():
    chosen = [rule.code for rule in selected(["H30"], ["H302"])]
    assert {"H303", "H304"} <= {*chosen}
    assert all(code.startswith("H30") and code != "H302" for code in chosen)
    with pytest.raises(Misconfigured, match='there is no rule "H9"'):
        selected(["H9"], [])


def mutated(seed: int) -> str:
    """A script of the corpus, with a few pieces of it cut, doubled or replaced."""
    chance = random.Random(seed)
    text = chance.choice(SCRIPTS).read_text()
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(text))
        end = min(len(text), at + chance.randint(0, 30))
        text = text[:at] + chance.choice(["", "\n", "(", ")", "    ", "x", "=", "\0", text[at:end] * 2]) + text[end:]
    return text


@pytest.mark.proof
@pytest.mark.parametrize("begin", range(0, 10_000, 1_000))
def test_ten_thousand_mutated_files_are_looked_at_or_told_to_be_unreadable(begin):
    read = 0
    for seed in range(begin, begin + 1_000):
        with suppress(Unreadable):
            lint_text(mutated(seed), "script.py")
            read += 1
    assert 0 < read < 1_000
