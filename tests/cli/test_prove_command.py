"""hasten prove: what it shows, what it answers, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main

from hasten import errors
from hasten.cli import app
from hasten.cli.prove import resume_command
from hasten.errors import HARMED, INTERRUPTED, NOT_PROVEN, TERMINATED
from hasten.tuning.resume.resume_proof import Kill, Phase, ResumeProof
from support.cli.commands import invoked, unwrapped

CONTROL_CODE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with jobs and plans, and the present one while the test runs."""
    for jobs in ("loss_jobs.py", "resumed_jobs.py"):
        shutil.copy(Path(__file__).parents[1] / "tuning" / "jobs" / jobs, tmp_path)
    (tmp_path / "plan.toml").write_text('[[choice]]\ntechnique = "accumulation"\nvalue = 2\n')
    (tmp_path / "nothing.toml").write_text('[[choice]]\ntechnique = "precision"\nvalue = "fp32"\n')
    return tmp_path


def ran(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of hasten prove loss."""
    return ran_proof("loss", *arguments)


def ran_proof(*arguments: str) -> tuple[int, str, str]:
    return invoked("prove", *arguments)


def last_line(shown: str) -> str:
    return shown.strip().splitlines()[-1].strip()


OUTPUT = ("--quiet", "-q", "--json")


def test_options_change_only_on_purpose():
    prove = typer.main.get_command(app).commands["prove"]  # type: ignore[attr-defined]
    options = [option for item in prove.commands["loss"].params for option in item.opts]
    assert options == ["job", "--plan", "--pairs", "--margin", "--metric", "--steps", "--seeds", "--set", *OUTPUT]
    options = [option for item in prove.commands["resume"].params for option in item.opts]
    assert options == ["job", "--plan", "--set", "--kills", "--steps", "--seed", *OUTPUT]
    assert list(prove.commands) == ["loss", "resume"]


@pytest.mark.proof
def test_a_proven_harm_has_a_code_of_its_own_and_the_plan_is_not_offered(here: Path):
    asked = ("--pairs", "3", "--margin", "1")
    code, shown, _ = ran("loss_jobs.py:another_rate_when_planned", "--plan", "plan.toml", *asked)
    assert code == 16
    assert "loss is harmed with 3 pairs" in shown
    assert last_line(shown) == "next      hasten train loss_jobs.py:another_rate_when_planned"


@pytest.mark.proof
def test_what_is_not_proven_is_no_success_and_asks_for_as_many_pairs_as_it_takes(here: Path):
    asked = ("--pairs", "3", "--steps", "9", "--margin", "0.01", "--seeds", "4")
    code, shown, _ = ran("loss_jobs.py:job", "--plan", "plan.toml", *asked)
    assert code == 17
    assert "loss is inconclusive with 3 pairs" in shown
    assert "often misses a true harm below" in unwrapped(shown)
    again = r"next +hasten prove loss loss_jobs.py:job --plan plan.toml --pairs \d+ --seeds 7 --margin 0.01 --steps 9"
    assert re.fullmatch(again, last_line(unwrapped(shown)))


def test_the_answer_is_one_object_for_a_program(here: Path):
    asked = ("--pairs", "3", "--metric", "right", "--steps", "9", "--json")
    code, shown, _ = ran("loss_jobs.py:job", "--plan", "nothing.toml", *asked)
    assert code == 0
    found = json.loads(shown)
    assert (found["verdict"], found["metric"], found["higher_is_better"]) == ("equivalent", "right", True)
    assert found["harm"] == found["high"] == 0
    assert found["unharmed"] is True
    assert [pair["seed"] for pair in found["pairs"]] == [0, 1, 2]
    assert all(pair["baseline"] == pair["planned"] and pair["baseline"]["steps"] == 9 for pair in found["pairs"])
    assert found["next"] == "hasten train loss_jobs.py:job --plan nothing.toml"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["loss_jobs.py:job", "--plan", "nothing.toml", "--metric", "rigth"], 2, 'did you mean "right"?'),
        (["loss_jobs.py:jobb", "--plan", "nothing.toml"], 2, 'there is no function "jobb"'),
        (["loss_jobs.py:job", "--plan", "plan.tml"], 2, "plan.tml: there is no such file"),
        (["loss_jobs.py:job", "--plan", "nothing.toml", "--pairs", "2"], 2, "--pairs"),
    ],
)
def test_what_cannot_be_asked_is_refused(here: Path, arguments: list[str], code: int, says: str):
    ended, shown, error = ran(*arguments)
    assert (ended, "verdict" in shown) == (code, False)
    assert says in error


def test_an_interruption_tells_what_the_finished_pairs_said(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HASTEN_TEST_PROCESS", str(os.getpid()))
    monkeypatch.setenv("HASTEN_TEST_SEED", "1")
    code, shown, _ = ran("loss_jobs.py:interrupting", "--plan", "plan.toml", "--pairs", "9")
    assert code == 130
    assert "1 of 9 pairs were trained, too few" in shown
    assert last_line(shown) == "next      hasten prove loss loss_jobs.py:interrupting --plan plan.toml --pairs 9"


@pytest.mark.parametrize("proof", ["loss", "resume"])
def test_the_help_lists_every_exit_code_that_is_no_error(proof: str):
    shown = " ".join(ran_proof(proof, "--help")[1].split())
    for code in (HARMED, NOT_PROVEN, INTERRUPTED, TERMINATED):
        assert f" {code}, " in shown
        assert re.search(rf"^\w+ +{code} ", errors.__doc__ or "", re.MULTILINE)


# ── hasten prove resume ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def forking(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes begin as copies of this one: in a tenth of the time."""
    monkeypatch.setattr("hasten.tuning.resume.run_process.START_METHOD", "fork")
    return here


fork_warned = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.mark.proof
def test_a_killed_run_goes_on_exactly_in_processes_as_the_command_begins_them(here: Path):
    code, shown, error = ran_proof("resume", "resumed_jobs.py:job", "--kills", "1", "--steps", "40")
    assert (code, CONTROL_CODE.search(shown)) == (0, None)
    flat = " ".join(shown.split())
    assert "why trained 40 steps of the planned 56, saved every 3; killed once" in flat
    assert re.search(r"; killed once( in \d runs)?: 1 while it (trained|saved); ", flat)
    assert "; compared 45 lines of the log, and the last checkpoint" in flat
    assert "verdict Bit-exact: killed and resumed once, the run is identical to an undisturbed one" in flat
    assert re.search(r"kill 1 of 1, at step \d+, while it (trained|saved): ", error)
    assert last_line(shown) == "next      hasten train resumed_jobs.py:job"


@fork_warned
def test_a_run_that_does_not_go_on_exactly_has_the_code_of_harm_and_what_to_do(forking: Path):
    asked = ("--kills", "6", "--steps", "30")
    code, shown, _ = ran_proof("resume", "resumed_jobs.py:counting", *asked)
    assert code == HARMED
    number = r"-?\d\.\S+ \(-?0x1\.[0-9a-f]+p[+-]\d+\)"
    assert re.search(
        rf"verdict Not exact after \d kills?, in a process that resumed from step \d+: at step \d+ loss is "
        rf"{number}, and should be {number}\. A second undisturbed run is identical to the first",
        " ".join(shown.split()),
    )
    assert "register_buffer" in shown
    assert last_line(shown) == "next      hasten prove resume resumed_jobs.py:counting --kills 6 --steps 30"


@fork_warned
def test_a_job_that_fails_ends_the_proof_as_it_ends_any_command(forking: Path):
    code, shown, error = ran_proof("resume", "resumed_jobs.py:faulty", "--kills", "1")
    assert (code, "verdict" in shown) == (10, False)
    assert 'in loss\n    raise ValueError("no such class")\n' in error
    assert re.search(r"error +resumed_jobs.py:\d+, in loss: ValueError: no such class", error)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["resumed_jobs.py:jobb", "--kills", "0"], "--kills"),
        (["resumed_jobs.py:job", "--plan", "plan.tml"], "plan.tml: there is no such file"),
        (["resumed_jobs.py:job", "--steps", "1"], "--steps"),
    ],
)
def test_what_cannot_be_resumed_is_refused_before_anything_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
):
    monkeypatch.setattr("hasten.tuning.resume.run_process.START_METHOD", None)
    code, shown, error = ran_proof("resume", *arguments)
    assert (code, "verdict" in shown) == (2, False)
    assert says in error


def test_kills_are_counted_by_what_they_have_hit():
    def hit(phase: Phase) -> Kill:
        return Kill(phase=phase, step=3, saved_step=2)

    fields = {"steps": 9, "total_steps": None, "save_every": 1, "lines": 9}
    kills = (hit(Phase.SAVING), hit(Phase.TRAINING), hit(Phase.SAVING))
    found = ResumeProof(wanted=4, kills=kills, runs=2, **fields)
    assert resume_command.killed(found) == "3 times in 2 runs: 2 while it saved, 1 while it trained"
    assert "it ended before 4 times" in resume_command.sentence(found)
    nothing = replace(found, kills=())
    assert (nothing.verdict, resume_command.EXIT_CODES[nothing.verdict]) == ("not killed", NOT_PROVEN)
    assert resume_command.killed(nothing) == "never"
    assert "Inconclusive" in resume_command.sentence(nothing)
