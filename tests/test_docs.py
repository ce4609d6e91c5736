"""The pages of docs/: what the code can tell is what it tells now, and no page sends its reader nowhere."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from typer.main import get_command
from typer.testing import CliRunner

import build_docs
import hasten
import messages
from hasten.cli import app
from hasten.cli.tuning.script_words import split_at_script
from hasten.doctor.lint.linter import check_file
from hasten.doctor.rules import ALL as SOURCE_RULES
from hasten.facts.finding import ranked
from hasten.facts.plan_file import plan_from_toml
from hasten.report.finding_formats import as_text, summary
from hasten.techniques import ALL
from support import small_job
from support.cli.commands import ran

REPOSITORY = build_docs.DOCS.parent
PAGES = sorted([*REPOSITORY.glob("*.md"), *build_docs.DOCS.rglob("*.md"), *(REPOSITORY / "records").rglob("*.md")])

LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^\$ |`|-m )hasten ([a-z][^`\n]*)", re.MULTILINE)
COMMANDS: Any = get_command(app)
EXECUTED = {
    *("README.md", "README.zh-CN.md", "docs/reference/plan.md"),
    *(f"docs/start/{name}.md" for name in ("job", "notebook", "zh-CN")),
    *(f"docs/guides/{name}.md" for name in ("cache", "checkpoints", "data", "doctor", "images", "not-a-job")),
    *(f"docs/guides/{name}.md" for name in ("operators", "schedule", "shards", "train", "tune")),
}
"""Pages with Python, which a test runs: of operators.md tests/examples/test_own_operator.py, of the others one here."""


def by_place(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@pytest.fixture(scope="module")
def written():
    return build_docs.pages()


def test_a_generated_page_says_what_the_code_says(written):
    texts = {name: (build_docs.DOCS / name).read_text(encoding="utf-8") for name in written}
    assert [name for name in written if texts[name] != written[name]] == [], "run: make docs"


def test_every_technique_has_a_page_and_a_place_in_the_list(written):
    pages = {name for name in written if name.startswith("reference/techniques/")}
    assert pages == {
        "reference/techniques/README.md",
        *(f"reference/techniques/{technique.name}.md" for technique in ALL),
    }
    for technique in ALL:
        assert f"({technique.name}.md)" in written["reference/techniques/README.md"]


def test_every_command_is_described_with_an_example(written):
    sections = dict(re.findall(r"^## (hasten [\w-]+)\n(.*?)(?=^## |\Z)", written["reference/commands.md"], re.M | re.S))
    assert {f"hasten {name}" for name in ("doctor", "tune", "train", "explain", "profile")} <= {*sections}
    assert [name for name, text in sections.items() if f"$ {name}" not in text] == []


def test_no_page_outlives_its_technique(written):
    assert build_docs.stale(written) == []


def test_a_page_that_nothing_writes_is_found(tmp_path, monkeypatch, written):
    monkeypatch.setattr(build_docs, "DOCS", tmp_path)
    (tmp_path / "reference" / "techniques").mkdir(parents=True)
    (tmp_path / "reference" / "techniques" / "gone.md").touch()
    assert [path.name for path in build_docs.stale(written)] == ["gone.md"]


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in PAGES:
        for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            place = page.parent / target if target else page
            if not re.match(r"\w+:", target) and not (place.exists() and (not anchor or anchor in anchors(place))):
                broken.append((by_place(page), target, anchor))
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as GitHub and mkdocs make them."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_examples_of_plans_are_valid():
    for page in PAGES:
        for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language == "toml":
                plan_from_toml(text, page.name, {technique.name for technique in ALL})


def test_every_page_with_python_is_run():
    found = {by_place(page) for page in PAGES if "```python\n" in page.read_text(encoding="utf-8")}
    assert found == EXECUTED


def test_commands_on_pages_exist_with_their_options():
    pages = [page for page in PAGES if "records" not in page.parts and page.name != "CHANGELOG.md"]
    texts = {page.name: page.read_text(encoding="utf-8").replace("\\\n", "") for page in pages}
    lines = [(name, line, unknown_words(line)) for name, text in texts.items() for line in COMMAND.findall(text)]
    assert len(lines) > 100
    assert [each for each in lines if each[2]] == []


def unknown_words(line: str) -> list[str]:
    """The options of a command, without `hasten`, that it does not have; or the command, where there is none. Those of
    a script, behind its name, are its own."""
    whole = shlex.split(line, comments=True)
    own, _ = split_at_script(whole) or (whole, [])
    words = [*takewhile("--".__ne__, own)]
    command = COMMANDS
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return words[:1]
        command = command.commands[words.pop(0)]
    options = {name for each in command.params for name in each.opts}
    return [word for word in words if word.startswith("-") and word not in options]


def examples(page: str, language: str = "python") -> list[str]:
    """The blocks of a page in a language. page: its path from docs/."""
    text = (build_docs.DOCS / page).read_text(encoding="utf-8")
    return [block for name, block in BLOCK.findall(text) if name == language]


def executed(page: str) -> dict[str, Any]:
    """The names that the Python of a page defines, one block after the other."""
    names: dict[str, Any] = {}
    for block in examples(page):
        exec(compile(block, page, "exec"), names)
    return names


@pytest.fixture
def write_module(tmp_path, monkeypatch) -> Callable[[str, str], None]:
    """(name, text): write a module into the present folder, where it is found until the test ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", [*sys.argv])

    def write(name: str, text: str) -> None:
        Path(f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.setitem(sys.modules, name, None)  # so that the module that is loaded is removed at the end
        del sys.modules[name]

    return write


@pytest.fixture
def photos(tmp_path, monkeypatch) -> None:
    """The present folder has photos/train and photos/valid, each with two classes of two images."""
    monkeypatch.chdir(tmp_path)
    for number, place in enumerate(("train/cat", "train/dog", "valid/cat", "valid/dog") * 2):
        folder = Path("photos", place)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 48), (30 * number, 0, 0)).save(folder / f"{number}.jpg")


@pytest.mark.parametrize("page", ["../README.md", "../README.zh-CN.md", "start/zh-CN.md"])
def test_the_job_on_a_first_page_trains(page):
    assert hasten.train(executed(page)["job"](), receivers=[]).results


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_terminal_of_a_readme_is_the_recorded_session_with_its_gaps_marked(name):
    shown = re.search(r"^```console\n(.*?)^```$", (REPOSITORY / name).read_text(encoding="utf-8"), re.M | re.S)
    assert shown is not None
    recorded = (build_docs.DOCS / "images" / "session.txt").read_text(encoding="utf-8")
    assert [part for part in shown[1].split("⋮") if part.strip("\n") not in recorded] == []


def test_the_examples_of_the_page_on_training_run(tmp_path, monkeypatch):
    sent = dict[str, float]()
    wandb = SimpleNamespace(init=lambda project: None, log=lambda numbers, step: sent.update(numbers))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.chdir(tmp_path)
    hasten.write_plan(hasten.make_plan(), "plan.toml")
    names = executed("guides/train.md")
    assert {*sent} == {"train/loss", "learning rate", "valid/loss"}
    assert {*names["result"].results} == {"loss", "accuracy"}


def test_the_loops_of_what_is_no_job_run():
    learned = executed("guides/not-a-job.md")["run"].weights()
    assert learned["weight"].item() == pytest.approx(2, abs=1e-3)


def test_the_findings_on_the_first_page_are_the_doctors(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    findings = check_file(Path("examples/naive.py"), SOURCE_RULES).findings
    page = (build_docs.DOCS / "start/doctor.md").read_text(encoding="utf-8")
    shown = next(text for _, text in BLOCK.findall(page) if text.startswith("$ hasten doctor examples/naive.py\n"))
    listed = [each for each in re.split(r"\n\n|\n?⋮\n|^\$.*\n", shown) if each.startswith("examples/")]
    assert len(listed) == 3
    assert [each for each in listed if each not in as_text(ranked(findings))] == []
    assert summary([each for each in findings if not each.gpu_only], 1).headline in shown


def test_the_repair_on_the_first_page_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("examples").mkdir()
    fixed = Path(shutil.copy(REPOSITORY / "examples/naive.py", "examples/fixed.py"))
    monkeypatch.setattr("hasten.cli.doctor.doctor_command.has_accelerator", lambda: False)
    page = (build_docs.DOCS / "start/doctor.md").read_text(encoding="utf-8")
    diff, repair, check = re.findall(r"^\$ hasten (doctor examples/fixed.py.*\n(?:[^$`].*\n|\n)+)", page, re.M)
    assert not_printed(diff) == []
    assert not_printed(repair) == []
    edits = {
        "pin_memory=True)": "pin_memory=True, num_workers=2, persistent_workers=True)",
        "        print(\n": "        if step % 50 == 0: print(\n",
        "def evaluate": "@torch.no_grad()\ndef evaluate",
        "    if torch.cuda.device_count() > 1:\n        model = nn.DataParallel(model)\n": "",
    }
    source = fixed.read_text(encoding="utf-8")
    for old, new in edits.items():
        assert old in source
        source = source.replace(old, new)
    fixed.write_text(source, encoding="utf-8")
    assert not_printed(check) == []


def not_printed(shown: str) -> list[str]:
    """The lines below a command that it does not print. shown: the arguments of hasten, and the lines."""
    command, *lines = shown.splitlines()
    printed = CliRunner().invoke(app, shlex.split(command)).output.splitlines()
    return [line for line in lines if line != "⋮" and line not in printed]


def test_the_script_and_the_job_of_the_first_steps_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = executed("start/job.md")
    printed = re.findall(r"^epoch 5: accuracy ([\d.]+)$", capsys.readouterr().out, re.M)
    assert float(printed[0]) > 0.9
    assert {*names["result"].results} == {"loss", "accuracy"}
    assert names["result"].results["accuracy"] > 0.9


def test_the_job_of_the_first_steps_needs_nothing_of_the_script():
    page = (build_docs.DOCS / "start/job.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(next(text for _, text in BLOCK.findall(page) if text.startswith("# job.py\n")), names)
    assert len(hasten.train(names["job"](), receivers=[]).results) == 2


def test_the_cells_of_the_page_on_notebooks_run(write_module, monkeypatch):
    """hasten.tune is replaced, because a search takes a minute."""
    (cell,) = examples("start/notebook.md", "text")
    write_module("job", cell.removeprefix("%%writefile job.py\n"))
    monkeypatch.setattr(hasten, "tune", lambda name, seconds, output: hasten.make_plan(precision="bf16"))
    names = executed("start/notebook.md")
    assert names["found"].results == names["result"].results
    assert names["result"].reason


def test_both_jobs_of_the_page_on_data_train():
    trained = []
    for example in examples("guides/data.md"):
        names: dict[str, Any] = {}
        exec(example, names)
        trained.append(hasten.train(names["job"](), receivers=[]))
    assert [(each.steps, each.epochs) for each in trained] == [(125, 5), (64, 2)]


def test_the_job_and_the_view_of_the_page_on_images_read_a_folder(photos):
    names = executed("guides/images.md")
    assert hasten.train(replace(names["job"](), epochs=1), receivers=[]).steps == 1
    squares = hasten.ImageFolder("photos/train", names["RandomSquare"](16))
    images, labels = zip(*(squares[index] for index in range(len(squares))), strict=True)
    assert ({tuple(image.shape) for image in images}, labels) == ({(3, 16, 16)}, (0, 0, 1, 1))


def test_the_data_of_the_page_on_caching_is_cached(photos, write_module, tmp_path):
    (example,) = examples("guides/cache.md")
    write_module("page_on_caching", example)
    job = small_job(
        model=lambda: nn.Conv2d(3, 1, 256),
        loss=lambda model, batch: model(batch / 255).square().mean(),
        train=importlib.import_module("page_on_caching").train,
    )
    assert hasten.train(job, hasten.make_plan(cache=str(tmp_path / "caches")), receivers=[]).steps == 2
    assert any((tmp_path / "caches").iterdir())


def test_each_schedule_of_its_page_can_be_a_jobs():
    job = small_job(
        loss=hasten.supervised(nn.functional.cross_entropy),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        valid=small_job().train,
        metrics={"accuracy": lambda prediction, target: (prediction.argmax(1) == target).float().mean()},
    )
    names = executed("guides/schedule.md")
    for name in ("one_cycle", "cosine", "decay", "plateau"):
        assert hasten.train(replace(job, schedule=names[name]), receivers=[]).steps == 10


def test_the_run_of_the_page_on_checkpoints_is_resumed_and_gives_its_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = executed("guides/checkpoints.md")
    assert names["result"].steps == 16
    trained = hasten.read_weights("runs/first/model.safetensors")
    assert torch.equal(names["larger"]()[0].weight, trained["weight"])


def test_the_page_on_shards_reads_what_its_commands_pack(photos, write_module):
    pictures, data, rows = examples("guides/shards.md")
    write_module("data", data)
    for block in examples("guides/shards.md", "console"):
        for line in re.findall(r"^\$ hasten (.+)$", block, re.MULTILINE):
            assert ran(line)[0] == 0
    names: dict[str, Any] = {}
    exec(pictures, names)
    assert len(names["train"]) == 4
    exec(rows, names)
    assert len(names["train"]) == 1000
    assert [type(part).__name__ for part in names["train"][0]] == ["ndarray", "int"]


def test_the_search_from_python_gives_a_plan_to_train_by(write_module, monkeypatch):
    """hasten.tune is replaced, because a search takes a minute."""
    write_module("digits", examples("../README.md")[0])
    monkeypatch.setattr(hasten, "tune", lambda name, seconds, output: hasten.make_plan())
    assert executed("guides/tune.md")["result"].results


def test_the_examples_of_the_page_on_plans_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hasten.write_plan(hasten.make_plan(), "plan.toml")
    plan = executed("reference/plan.md")["plan"]
    assert [each.choice.technique for each in plan.choices] == ["precision", "schedule"]


def test_the_script_of_the_guide_of_the_doctor_runs_and_has_the_finding_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    executed("guides/doctor.md")
    Path("train.py").write_text(examples("guides/doctor.md")[0], encoding="utf-8")
    shown = next(block for block in examples("guides/doctor.md", "console") if "doctor train.py\n" in block)
    assert not_printed(shown.removeprefix("$ hasten ")) == []


def test_the_estimate_on_the_page_on_clusters_is_what_is_printed(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    shown = next(block for block in examples("guides/cluster.md", "console") if "examples/text.py" in block)
    assert [line for line in not_printed(shown.removeprefix("$ hasten ")) if "  machine " not in line] == []


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
