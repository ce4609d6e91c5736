"""`hasten doctor`: what it prints, what it ends with, and what it offers next."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hasten.cli import app
from hasten.cli.doctor.doctor_job import profile_job
from hasten.cli.tuning.script_words import split_at_script
from hasten.errors import HastenError, UserCodeFailed
from hasten.report.terminal.command_output import CommandOutput
from support.cli.commands import ran

WRONG = "optimizer.zero_grad(set_to_none=False)\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "right.py").write_text("optimizer.zero_grad()\n")
    return tmp_path


def test_a_finding_is_shown_with_its_line_and_what_to_do(here):
    result = CliRunner().invoke(app, ["doctor", "."])
    assert result.exit_code == 1
    assert result.stdout.removeprefix("Checking .\n\n").startswith(
        "wrong.py:1:1  H303  optimizer.zero_grad(set_to_none=False) fills every gradient with zeros\n"
    )
    assert "    optimizer.zero_grad(set_to_none=False)\n    → remove set_to_none=False\n" in result.stdout
    assert "1 finding in 2 files" in result.stdout
    assert result.stdout.rstrip().endswith("hasten explain H303")


LISTED = """import torch
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).cuda()
model.load_state_dict(torch.load("weights.pt"))
a = torch.zeros(3).to("cuda")
b = torch.ones(3).to("cuda")
model = torch.nn.DataParallel(model, [0, 1])
optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
for x in data:
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
    print(loss.cpu())
"""


def test_the_most_costly_rule_comes_first_with_all_its_places_in_one_block(here):
    (here / "listed.py").write_text(LISTED)
    code, told, _ = ran("doctor listed.py --all")
    blocks = [block for block in told.split("\n\n")[1:] if "  H" in block]
    assert [block.split("  ")[:2] for block in blocks] == [
        ["listed.py:6:9", "H501"],
        ["listed.py:13:11", "H201"],
        ["listed.py:2:29", "H417"],
        ["listed.py:3:23", "H416"],
        ["listed.py:4:5", "H203"],
    ]
    assert blocks[1] == (
        "listed.py:13:11  H201  loss.item() every step waits for all queued work on a GPU\n"
        "    print(loss.item())\n"
        "    also at listed.py:14:11\n"
        "    → keep it on the device, and read it every N steps"
    )
    assert "    also at listed.py:5:5\n" in blocks[-1]
    assert (code, "  verdict   7 findings in 1 file\n" in told) == (1, True)
    assert last_line(told) == "next      hasten explain H501"
    assert len(json.loads(ran("doctor listed.py --json")[1])["findings"]) == 7


@pytest.mark.parametrize("here_is_one", [True, False])
def test_what_costs_nothing_without_a_gpu_is_counted_and_not_listed_on_a_machine_without_one(
    here, here_is_one, monkeypatch
):
    monkeypatch.setattr("hasten.cli.doctor.doctor_command.has_accelerator", lambda: here_is_one)
    (here / "listed.py").write_text(LISTED)
    code, told, _ = ran("doctor listed.py")
    found = 7 if here_is_one else 2
    assert (code, f"  verdict   {found} findings in 1 file\n" in told) == (1, True)
    if here_is_one:
        assert told == ran("doctor listed.py --all")[1]
        return
    assert re.findall(r"  (H\d+)  ", told) == ["H417", "H416"]
    assert "\n  note      5 more findings cost time on a GPU only, and this machine has none: add --all\n" in told
    assert last_line(told) == "next      hasten explain H417"
    assert (
        ran("doctor listed.py --select H2")[1] == ran("doctor listed.py --select H2 --all")[1]
    )  # nothing else is found


def test_the_next_command_is_about_the_most_costly_finding_and_tunes_what_trains_without_any(here):
    loop = "for x in data:\n    loss = model(x).mean()\n    loss.backward()\n    total += loss\n"
    kept = f"model, total = torch.nn.Linear(2, 2), 0.0\n{loop}"
    (here / "kept.py").write_text(f"import torch\n{kept}")
    assert last_line(ran("doctor kept.py")[1]) == "next      hasten doctor kept.py --diff"
    (here / "kept.py").write_text(f"import torch\ntorch.autograd.set_detect_anomaly(True)\n{kept}")
    assert last_line(ran("doctor kept.py")[1]) == "next      hasten explain H304"
    assert last_line(ran("doctor right.py")[1]) == "next      hasten techniques"
    (here / "kept.py").write_text(f"import torch\n{kept}".replace("total += loss", "optimizer.step()"))
    assert last_line(ran("doctor kept.py --ignore H4")[1]) == "next      hasten tune kept.py"
    (here / "rows.py").write_text("import hasten\ndef rows(): ...\ndef job():\n    return hasten.Job(train=rows())\n")
    assert last_line(ran("doctor rows.py")[1]) == "next      hasten tune rows.py:job"


def last_line(shown: str) -> str:
    return shown.splitlines()[-1].strip()


def test_a_trainer_of_hugging_face_is_not_passed_over_in_silence(here):
    (here / "hub.py").write_text("import transformers as hf\nclass Mine(hf.Trainer): ...\nMine().train()\n")
    result = CliRunner().invoke(app, ["doctor", "hub.py"])
    assert "hub.py:2: a transformers.Trainer trains here, and its settings" in result.stderr
    (here / "hub.py").write_text("from transformers import AutoModel\nclass Trainer: ...\nTrainer().train()\n")
    assert CliRunner().invoke(app, ["doctor", "hub.py"]).stderr == ""


def test_a_code_host_is_told_the_same_beside_the_lines_of_a_change(here):
    result = CliRunner().invoke(app, ["doctor", "wrong.py", "--format", "github"])
    assert result.stdout.startswith(
        "::warning file=wrong.py,line=1,col=1,endLine=1,endColumn=39,title=H303::optimizer.zero_grad(set_to_none=False)"
    )
    assert result.exit_code == 1


def test_an_editor_is_told_the_same_in_sarif(here):
    result = CliRunner().invoke(app, ["doctor", "wrong.py", "--format", "sarif"])
    (run,) = json.loads(result.stdout)["runs"]
    (found,) = run["results"]
    assert run["tool"]["driver"]["rules"][found["ruleIndex"]]["id"] == found["ruleId"] == "H303"
    (location,) = found["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "wrong.py"
    assert location["physicalLocation"]["region"] == {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 39}


@pytest.mark.parametrize(
    "content",
    [
        b"# coding: latin-1\n'\xe9'; optimizer.zero_grad(set_to_none=False)  # \xe9t\xe9\nx = 1",
        b"# one\r\nx = 1\roptimizer.zero_grad(set_to_none=False)\r\ny = 1\n",
    ],
    ids=["latin-1", "all line ends"],
)
def test_a_difference_is_told_in_the_bytes_of_its_file(here, content):
    (here / "odd.py").write_bytes(content)
    told = CliRunner().invoke(app, ["doctor", "odd.py", "--diff", "--unsafe-fixes"]).stdout_bytes
    told = told.replace(b"--- odd", b"--- a/odd").replace(b"+++ odd", b"+++ b/odd")
    subprocess.run(["git", "apply", "-"], input=told, cwd=here, check=True)
    assert (here / "odd.py").read_bytes() == content.replace(b"set_to_none=False", b"")


def test_what_may_change_the_program_is_mended_only_where_that_is_asked_for(here):
    assert CliRunner().invoke(app, ["doctor", "wrong.py", "--fix"]).exit_code == 1
    assert (here / "wrong.py").read_text() == WRONG
    result = CliRunner().invoke(app, ["doctor", "wrong.py", "--unsafe-fixes"])
    assert (result.exit_code, "add --diff to show the fixes" in result.stderr) == (2, True)
    assert (here / "wrong.py").read_text() == WRONG
    result = CliRunner().invoke(app, ["doctor", "wrong.py", "--fix", "--unsafe-fixes"])
    assert (result.exit_code, "  fixed     1 in wrong.py\n" in result.stdout) == (0, True)
    assert (here / "wrong.py").read_text() == "optimizer.zero_grad()\n"
    assert CliRunner().invoke(app, ["doctor", "wrong.py", "--diff", "--unsafe-fixes"]).stdout == ""


def test_a_project_chooses_what_is_looked_for_unless_the_command_does(here):
    (here / "pyproject.toml").write_text('[tool.hasten]\nignore = ["H303"]\n')
    assert CliRunner().invoke(app, ["doctor", "wrong.py"]).exit_code == 0
    assert CliRunner().invoke(app, ["doctor", "wrong.py", "--select", "H303"]).exit_code == 1


def test_what_a_project_excludes_is_not_looked_at_and_said_to_be(here):
    (here / "pyproject.toml").write_text('[tool.hasten]\nexclude = ["wrong.py"]\n')
    told = CliRunner().invoke(app, ["doctor", "."])
    assert told.exit_code == 0
    assert "skipped 1 file that [tool.hasten] in pyproject.toml excludes" in told.stderr


@pytest.mark.proof
def test_findings_of_a_job_that_is_named_as_a_module_are_told_in_sarif_too(here):
    (here / "inner").mkdir()
    (here / "inner" / "train.py").write_text(WRONG)
    (here / "inner" / "pyproject.toml").write_text('[tool.hasten]\nselect = ["H2"]\n')
    (here / "small.py").write_text(
        "import hasten, torch\n"
        "from torch.nn.functional import mse_loss\n"
        "print('of the file')\n"
        "class Model(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(4, 1)\n"
        "        self.never_called = torch.nn.Linear(4, 4)\n"
        "def job():\n"
        "    print('of the job')\n"
        "    rows = torch.randn(64, 4), torch.zeros(64, 1)\n"
        "    return hasten.Job(model=Model, loss=hasten.supervised(mse_loss), train=rows, batch_size=2, epochs=1,\n"
        "        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))\n"
    )
    told = CliRunner().invoke(app, ["doctor", "inner", "small:job", "--format", "sarif"])
    assert {"of the file", "of the job"} <= {*told.stderr.splitlines()}  # nothing but what is found is for the machine
    (run,) = json.loads(told.stdout)["runs"]
    rules = [each["id"] for each in run["tool"]["driver"]["rules"]]
    assert "H602" in {each["ruleId"] for each in run["results"]}
    assert all(rules[each["ruleIndex"]] == each["ruleId"] for each in run["results"])


@pytest.mark.proof
def test_nothing_found_is_said_and_is_no_failure(here):
    result = CliRunner().invoke(app, ["doctor", "right.py"])
    assert (result.exit_code, "verdict   Nothing found in 1 file\n" in result.stdout) == (0, True)


def test_a_file_that_is_not_python_is_told_with_its_line_and_the_others_are_looked_at(here):
    (here / "broken.py").write_text("x = 1\ndef f(:\n")
    result = CliRunner().invoke(app, ["doctor", "."])
    assert result.exit_code == 2
    assert "\n  error     broken.py:2: is not valid Python" in result.stderr
    assert "  verdict   1 finding in 2 files; 1 could not be read\n" in result.stdout
    assert "wrong.py:1:1  H303" in result.stdout


@pytest.mark.parametrize("option", ["", "--diff", "--fix", "--json", "--format sarif"])
@pytest.mark.parametrize("file", ["missing.py", "broken.py"])
def test_where_nothing_was_read_there_is_no_verdict_but_an_error(here, file, option):
    (here / "broken.py").write_text("def f(:\n")
    code, told, errors = ran(f"doctor {file} {option}")
    told = told.removeprefix("Checking broken.py\n")
    assert (code, "verdict" in told) == (2, False)
    assert json.loads(told)["where"].startswith(file) if option == "--json" else not told
    assert errors.startswith(f"\n  error     {file}")
    assert errors.count("error  ") == 1


def test_a_difference_is_followed_by_the_command_that_writes_it(here):
    code, told, errors = ran("doctor right.py wrong.py --diff --unsafe-fixes --select H3")
    assert (code, told.count("next")) == (1, 0)
    assert errors == (
        "\n  verdict   1 can be fixed in 1 file\n"
        "  next      hasten doctor right.py wrong.py --select H3 --fix --unsafe-fixes\n"
    )


def test_a_program_gets_one_object_or_the_list_of_findings_alone(here):
    found = json.loads(ran("doctor wrong.py --json")[1])
    assert [*found] == ["sentence", "why", "findings", "next"]
    assert (found["sentence"], found["findings"][0]["safety"]) == ("1 finding in 1 file", "unsafe")
    assert json.loads(ran("doctor wrong.py --format json")[1]) == found["findings"]


def test_a_rule_is_explained_by_its_code():
    result = CliRunner().invoke(app, ["explain", "H303"])
    assert result.exit_code == 0
    assert "H303  gradients_zeroed" in result.stdout
    assert "Why it matters: Every gradient is filled with zeros" in " ".join(result.stdout.split())
    assert CliRunner().invoke(app, ["explain", "H999"]).exit_code == 2


def test_what_other_processes_and_c_code_print_for_a_job_is_no_part_of_what_is_found(here, capfd):
    (here / "broken.py").write_text(
        "import ctypes, os, sys\n"
        "os.system('echo of a child')\n"
        "os.write(1, b'of a descriptor\\n')\n"
        "ctypes.CDLL(None).puts(b'of C')\n"
        "print('of Python', file=sys.__stdout__)\n"
        "job = 1 / 0\n"
    )
    with pytest.raises(HastenError, match="division by zero"), CommandOutput(as_json=True) as output:
        profile_job("broken.py:job", None, output)
    os.write(1, b"afterwards\n")
    told, errors = capfd.readouterr()
    assert told == "afterwards\n"
    assert {"of a child", "of a descriptor", "of C", "of Python"} <= {*errors.splitlines()}


def test_what_a_job_of_no_file_known_is_to_be_mended_in_is_asked_for(here):
    code, told, errors = ran("doctor somewhere.else:job --diff")
    assert (code, told, "needs a file" in errors) == (2, "", True)


def test_a_difference_is_of_a_jobs_file_and_the_job_is_said_not_to_be_looked_at(here):
    code, told, errors = ran("doctor right.py wrong.py:job --diff --unsafe-fixes")
    assert (code, told.count("+optimizer.zero_grad()")) == (1, 1)
    assert "wrong.py:job was not run" in errors


# ── a script that runs ──────────────────────────────────────────────────────────────────────────────────────────────

TRAINS = """import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.randn(64, 8), torch.zeros(64, 1))
loader, valid = DataLoader(rows, batch_size=8, shuffle=True), DataLoader(rows, batch_size=8)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for epoch in range(int(sys.argv[1])):
    model.train()
    for inputs, labels in loader:
        loss = nn.functional.mse_loss(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    model.eval()
    for inputs, labels in valid:
        print(nn.functional.mse_loss(model(inputs), labels))
"""


@pytest.mark.parametrize(
    ("line", "own", "behind"),
    [
        ("doctor --run train.py --epochs 3", "doctor --run train.py", "--epochs 3"),
        ("doctor train.py --run --json 3", "doctor --run train.py", "--json 3"),
        ("doctor --json train.py --run -v", "doctor --run --json train.py", "-v"),
        ("doctor --run --nproc 2 train.py --nproc 3", "doctor --run --nproc 2 train.py", "--nproc 3"),
        ("doctor --run --ignore H3 train.py --run", "doctor --run --ignore H3 train.py", "--run"),
    ],
)
def test_what_stands_behind_a_script_that_runs_is_the_scripts_own(line, own, behind):
    assert split_at_script(line.split()) == (own.split(), behind.split())


def test_the_script_that_runs_can_be_a_module():
    own = ["doctor", "--run", "--", "-m package.train"]
    assert split_at_script(["doctor", "--run", "-m", "package.train", "-v"]) == (own, ["-v"])


@pytest.mark.parametrize("line", ["doctor train.py --select H3", "doctor digits.py:job -- --run", "doctor . -q"])
def test_without_run_the_doctor_takes_its_options_behind_files_too(line):
    assert split_at_script(line.split()) is None


def test_a_script_that_runs_is_shown_with_its_seconds_and_what_each_finding_costs_of_them(here):
    (here / "train.py").write_text(TRAINS)
    code, told, _ = ran("doctor --run --json train.py 3")
    found = json.loads(told)
    times, length = found["times"], found["observed"]["length"]
    assert (code, found["next"]) == (1, "hasten tune train.py 3")
    assert (length["steps"], length["epochs"]) == (24, 3)
    assert found["observed"]["loader"]["made"][0]["line"] == 7
    assert times["start"] > 0.2  # nothing imports torch faster; the script itself starts in milliseconds
    assert sum(times["parts"].values()) == pytest.approx(times["step"])
    assert times["shortest"] <= times["step"] <= times["longest"]
    assert found["run_seconds"] == pytest.approx(times["start"] + 24 * times["step"] + 3 * times["turn"])
    assert [each["code"] for each in found["findings"]] == ["H413", "H303"]  # the one that has a price comes first
    price = {"seconds": pytest.approx(3 * times["turn"]), "whole_seconds": found["run_seconds"], "whole": "run"}
    assert [each["price"] for each in found["findings"]] == [price, None]


def test_a_script_that_fails_where_its_loader_ends_early_is_shown_without_the_time_between_epochs(here):
    within = "    for number, (inputs, labels) in enumerate(loader):\n        last = number\n"
    source = TRAINS.replace("    for inputs, labels in loader:\n", within)
    (here / "train.py").write_text(source.replace("    model.eval()\n", "    assert last == 7\n    model.eval()\n"))
    code, told, _ = ran("doctor --run --json train.py 9")
    times = json.loads(told)["times"]
    assert (code, times["turn"], times["start"] > 0.2) == (1, None, True)
    assert "fails where its loader ends early" in times["no_turn"]


def test_a_script_that_cannot_run_is_an_error_and_no_finding(here):
    (here / "train.py").write_text(TRAINS)
    code, told, errors = ran("doctor --run train.py")
    assert (code, "verdict" in told) == (UserCodeFailed.exit_code, False)
    assert "list index out of range" in errors


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("doctor . --run", "--run is for one training script, not for ."),
        ("doctor digits.py:job --run", "--run is for one training script, not for digits.py:job"),
        ("doctor --run --fix right.py", "--run has no use for --fix"),
        ("doctor --run missing.py", "missing.py: is no file"),
        ("doctor --nproc 2 right.py", "--nproc is for a script that runs"),
    ],
)
def test_what_does_not_run_as_a_script_is_refused(here, line, reason):
    code, told, errors = ran(line)
    assert (code, told, reason in errors) == (2, "", True)
