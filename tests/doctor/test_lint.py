"""Files are looked at, never run; what cannot be read is told and stops nothing; findings can be silenced."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.doctor.lint import lint, lint_text, selected
from hasten.errors import Misconfigured, Unreadable

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.py"))
WRONG = "optimizer.zero_grad(set_to_none=False)"


def codes(text: str) -> list[str]:
    return [each.code for each in lint_text(text, "script.py")]


def test_nothing_of_a_file_is_executed(tmp_path):
    harm = tmp_path / "harm.py"
    made = tmp_path / "made"
    harm.write_text(f"import pathlib, sys\npathlib.Path({str(made)!r}).touch()\nsys.exit(3)\n{WRONG}\n")
    before = set(sys.modules)
    assert [each.line for each in lint([harm]).findings] == [4]
    assert not made.exists()
    assert set(sys.modules) == before


@pytest.mark.parametrize("said", ["# hasten: ignore", "# hasten: ignore[H303]", "# hasten: ignore[H201, H303]  why"])
def test_a_finding_is_silenced_on_its_line(said):
    assert codes(f"{WRONG}  {said}") == []
    assert codes(f"{WRONG}  # hasten: ignore[H201]") == ["H303"]


def test_folders_are_looked_into_but_for_what_is_hidden_or_installed(tmp_path):
    for name in ("a.py", "b/c.py", ".hidden/d.py", "site-packages/e.py", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(WRONG)
    linted = lint([tmp_path])
    assert [each.path for each in linted.findings] == [str(tmp_path / "a.py"), str(tmp_path / "b" / "c.py")]
    assert linted.files == 2


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"def f(:", "is not Python"),
        (b"x = '\xff'", "cannot be read"),
        (b"# coding: nonsense\n", "cannot be read"),
        (b"x = 1\0", "cannot be parsed|is not Python"),
        (b"(" * 5000, "cannot be parsed|is not Python"),
        (b"x" + b".a" * 20_000, "cannot be parsed|is not Python"),
        (b"-" * 20_000 + b"1", "cannot be parsed|is not Python"),
    ],
    ids=["broken", "encoding", "coding", "null", "brackets", "attributes", "signs"],
)
def test_a_file_that_cannot_be_read_is_told_and_the_others_are_looked_at(tmp_path, content, what):
    (tmp_path / "bad.py").write_bytes(content)
    (tmp_path / "good.py").write_text(WRONG)
    linted = lint([tmp_path])
    assert [each.code for each in linted.findings] == ["H303"]
    (told,) = linted.unreadable
    assert any(each in told.what for each in what.split("|"))


def test_a_path_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(Unreadable, match="is not there"):
        lint([tmp_path / "none.py"])


def test_rules_are_chosen_by_codes_and_their_beginnings():
    assert [rule.code for rule in selected("H3", "H302")] == ["H303", "H304"]
    with pytest.raises(Misconfigured, match='there is no rule "H9"'):
        selected("H9", "")


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 1 << 32))
def test_a_mutated_file_is_looked_at_or_told_to_be_unreadable(seed):
    chance = random.Random(seed)
    text = chance.choice(CORPUS).read_text()
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(text))
        end = min(len(text), at + chance.randint(0, 30))
        text = text[:at] + chance.choice(["", "\n", "(", ")", "    ", "x", "=", "\0", text[at:end] * 2]) + text[end:]
    with suppress(Unreadable):
        lint_text(text, "script.py")
