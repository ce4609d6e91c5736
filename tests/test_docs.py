"""The pages of docs/: what the code can tell is what it tells now, and no page sends its reader nowhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import build_docs
import messages
from hasten.facts.plan_file import plan_from_toml
from hasten.techniques import ALL

REPOSITORY = build_docs.DOCS.parent
WRITTEN = build_docs.pages()
PAGES = sorted([*REPOSITORY.glob("*.md"), *build_docs.DOCS.rglob("*.md"), *(REPOSITORY / "records").rglob("*.md")])

LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(#[^)\s]+)?\)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def by_place(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize("name", WRITTEN)
def test_a_generated_page_says_what_the_code_says(name):
    page = build_docs.DOCS / name
    assert page.exists(), "run: make docs"
    assert page.read_text(encoding="utf-8") == WRITTEN[name], "run: make docs"


def test_every_technique_has_a_page_and_a_place_in_the_list():
    pages = {name for name in WRITTEN if name.startswith("techniques/")}
    assert pages == {"techniques/README.md", *(f"techniques/{technique.name}.md" for technique in ALL)}
    for technique in ALL:
        assert f"({technique.name}.md)" in WRITTEN["techniques/README.md"]


@pytest.mark.parametrize("command", ["doctor", "train", "techniques", "explain", "schedule", "profile"])
def test_every_command_is_told_with_an_example(command):
    _, _, told = WRITTEN["commands.md"].partition(f"## hasten {command}\n")
    assert f"$ hasten {command}" in told.partition("\n## ")[0]


def test_no_page_outlives_its_technique():
    assert build_docs.stale(WRITTEN) == []


def test_a_page_that_nothing_writes_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(build_docs, "DOCS", tmp_path)
    (tmp_path / "techniques").mkdir()
    (tmp_path / "techniques" / "gone.md").touch()
    assert [path.name for path in build_docs.stale(WRITTEN)] == ["gone.md"]


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_links_between_pages_lead_somewhere(page):
    targets = [target for target, _ in LINK.findall(page.read_text(encoding="utf-8"))]
    local = [target for target in targets if not re.match(r"\w+:", target)]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=by_place)
def test_examples_of_python_and_toml_are_valid(page):
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            ast.parse(text)
        elif language == "toml":
            plan_from_toml(text, page.name, {technique.name for technique in ALL})


def test_a_heading_of_a_manual_becomes_bold_and_other_colons_stay():
    manual = "Do it.\n\nWhat it does: this. Note: that.\nAlso: more.\n\nThe time is 12:30 here."
    assert build_docs.as_markdown(manual) == manual.replace("What it does:", "**What it does:**")


def test_a_cell_of_a_table_keeps_bars_and_brackets_as_text():
    assert build_docs.as_cell("runs/<name>, a|b") == r"runs/&lt;name>, a\|b"


def test_the_text_of_an_error_is_a_template(tmp_path):
    (tmp_path / "planted.py").write_text(
        "from hasten.errors import JobError, Misconfigured, StorageFailed as Failed\n"
        "AGAIN = 'try again'\n"
        "def check(path, steps, many):\n"
        "    what, fix = f'has {len(many)} of {steps.total_steps}', 'write ' + ('one' if many else 'two')\n"
        "    raise Misconfigured(what, where=str(path), fix=fix)\n"
        "def fail(): return JobError('epochs', 'is 0', 'write 1'), Failed(reason(), fix=AGAIN), ValueError('other')\n"
    )
    found = [(each.kind, each.text) for each in messages.messages(tmp_path)]
    assert found == [
        ("Misconfigured", "`‹path›`: has ‹many› of ‹total steps› → write one | two"),
        ("JobError", "`Job.epochs`: is 0 → write 1"),
        ("StorageFailed", "‹reason› → try again"),
    ]
