"""The command line: its options, its words, what it imports, and how each command ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from hasten.cli import app
from hasten.facts.plan_file import read_plan
from hasten.measure.processor_load import Load
from support.cli.commands import invoked as ran
from support.report.samples import write_plan, write_run

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
CONTROL_CODE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")

JOBS = """
from support import small_job

def job():
    return small_job()

def with_valid():
    job = small_job()
    return small_job(valid=job.train)

def faulty():
    return small_job(loss=lambda model, batch: model(batch[0][:, :1]).sum())

def endless():
    import os, signal
    def loss(model, batch):
        os.kill(os.getpid(), signal.SIGINT)
        return model(batch[0]).sum()
    return small_job(loss=loss)

def terminated():
    import os, signal
    def loss(model, batch):
        os.kill(os.getpid(), signal.SIGTERM)
        return model(batch[0]).sum()
    return small_job(loss=loss)

def pooled():
    import multiprocessing, pathlib, signal
    child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    child.start()
    def loss(model, batch):
        child.terminate()
        child.join()
        pathlib.Path("ended_by").write_text(str(child.exitcode))
        return model(batch[0]).sum()
    return small_job(loss=loss)

def full():
    def loss(model, batch):
        raise MemoryError("no room")
    return small_job(loss=loss)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with jobs and a plan, and the present one while the test runs."""
    (tmp_path / "jobs_of_tests.py").write_text(JOBS)
    (tmp_path / "plan.toml").write_text('[[choice]]\ntechnique = "clipping"\nvalue = 1.0\n')
    return tmp_path


OUTPUT, TRIED = ("--quiet", "-q", "--json"), ("--steps", "--nproc", "--apply", "--busy")


def test_commands_and_options_change_only_on_purpose():
    assert {
        name: [option for item in command.params for option in item.opts] for name, command in COMMANDS.items()
    } == {
        "train": [
            *("job", "--plan", "--set", "--weights", "--nproc", "--run-dir", "--resume", "--allow-change"),
            *("--save-every", "--keep-last", "--keep-every", "--grace"),
            *("--epochs", "--max-steps", "--batch-size", "--seed", "--device", "--tensorboard", "--receiver", *OUTPUT),
        ],
        "evaluate": ["job", "--weights", "--run", "--plan", "--data", "--batch-size", "--device", "--set", *OUTPUT],
        "doctor": [
            *("targets", "--plan", "--set", "--select", "--ignore", "--format", "--fix", "--unsafe-fixes", "--diff"),
            *("--run", "--nproc", "--all", *OUTPUT),
        ],
        "checkpoints": ["run", *OUTPUT],
        "export": ["run", "--output", "-o", "--step", *OUTPUT],
        "techniques": ["--json"],
        "explain": ["name", "--json"],
        "schedule": ["job", "--plan", "--set", "--png", "--range-test", *OUTPUT],
        "profile": ["job", "--plan", "--set", "--microbatch", *OUTPUT],
        "plan-mesh": [
            *("job", "--devices", "--memory", "--bandwidth", "--per-machine", "--microbatch", "--flops", "--plan"),
            *("--set", "--all", "--format", *OUTPUT),
        ],
        "pack": ["source", "folder", "--shard-size", "--seed", "--keep-order", "--set", "--verify", *OUTPUT],
        "report": ["source", "--output", "-o", *OUTPUT],
        "tune": ["job", "--output", "-o", "--allow", "--seconds", "--set", *TRIED, *OUTPUT],
        "run": ["script", "--plan"],
        "prove": [],
    }


HEAVY = {"torch", "numpy", "matplotlib", "tomlkit", "rich", "psutil", "pydantic"}


LOADED = """
import sys
from hasten.cli import app

def loaded(*lines):
    for line in lines:
        app(line.split(), standalone_mode=False)
    return %s & set(sys.modules)

commands = %s
assert loaded("--help") == set()
assert loaded("--version", *(f"{name} --help" for name in commands)) <= {"pydantic"}
assert not loaded("checkpoints runs/job-1") & {"torch", "numpy"}
assert not loaded("report plan.toml", "report runs/job-1", "doctor plan.py --ignore H6,H7") & {"torch"}
"""


def test_what_answers_at_once_loads_nothing_heavy(here: Path):
    """pydantic aside, which newer typers load themselves."""
    write_plan(here)
    (write_run(here / "runs" / "job-1") / "checkpoints").mkdir()
    (here / "plan.py").write_text("")
    done = apart("-c", LOADED % (HEAVY, [*COMMANDS]))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_shows_an_example(name: str):
    code, shown, _ = ran(name, "--help")
    assert code == 0
    assert re.search(rf"Examples?:\n  +hasten {name}\b", shown)
    assert "..." not in ran("--help")[1].partition("Commands:")[2]  # no summary is cut off


def flat(shown: str) -> str:
    """Without line breaks, which a long text has anywhere."""
    return " ".join(shown.split())


def last_line(shown: str) -> str:
    return shown.strip().splitlines()[-1].strip()


def test_training_leaves_a_run_and_says_what_to_do_next(here: Path):
    code, shown, _ = ran("train", "jobs_of_tests.py:with_valid", "--plan", "plan.toml", "--epochs", "1")
    assert code == 0
    assert not CONTROL_CODE.search(shown)
    assert last_line(shown) == "next      hasten profile jobs_of_tests.py:with_valid --plan plan.toml"
    run = here / "runs" / "with_valid-1"
    assert {path.name for path in run.iterdir()} == {
        *("asked.json", "plan.toml", "environment.json", "metrics.jsonl", "model.safetensors", "checkpoints")
    }
    assert read_plan(run / "plan.toml").value_of("clipping") == 1.0
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert events[0]["job"] == "jobs_of_tests.py:with_valid"
    assert events[-1]["epochs"] == 1


def test_options_replace_fields_of_the_job(here: Path):
    assert ran("train", "jobs_of_tests.py:job", "--max-steps", "3", "--batch-size", "4", "--seed", "5")[0] == 0
    events = [json.loads(line) for line in (here / "runs" / "job-1" / "metrics.jsonl").read_text().splitlines()]
    assert (events[0]["batch_size"], events[0]["total_steps"], events[-1]["steps"]) == (4, 3, 3)


def test_a_run_can_begin_with_the_weights_of_another(here: Path):
    assert ran("train", "jobs_of_tests.py:job", "--max-steps", "1")[0] == 0
    assert ran("export", "runs/job-1", "-o", "first.safetensors")[0] == 0
    code, shown, _ = ran("train", "jobs_of_tests.py:job", "--max-steps", "1", "--weights", "first.safetensors")
    assert code == 0
    assert f"note started from the weights of {here / 'first.safetensors'}: 2 tensors, 84 B" in " ".join(shown.split())
    assert (here / "runs" / "job-2" / "initial_weights.json").is_file()


def test_weights_that_cannot_be_taken_are_refused_before_the_job_is_loaded(here: Path):
    (here / "jobs_of_tests.py").write_text("raise AssertionError('the job was loaded')")
    code, _, error = ran("train", "jobs_of_tests.py:job", "--weights", "a.pt")
    assert code == 2
    assert "a.pt: there is no such file" in error
    assert not (here / "runs").exists()


def test_every_run_gets_a_folder_of_its_own(here: Path):
    for _ in range(2):
        assert ran("train", "jobs_of_tests.py:job", "--max-steps", "1")[0] == 0
    assert {path.name for path in (here / "runs").iterdir()} == {"job-1", "job-2"}
    before = (here / "runs" / "job-1" / "metrics.jsonl").read_bytes()
    code, _, error = ran("train", "jobs_of_tests.py:job", "--run-dir", "runs/job-1")
    assert code == 2
    assert "--run-dir" in error
    assert (here / "runs" / "job-1" / "metrics.jsonl").read_bytes() == before


def test_tensorboard_events_lie_in_the_run(here: Path):
    pytest.importorskip("tensorboard")
    code, shown, _ = ran("train", "jobs_of_tests.py:job", "--max-steps", "1", "--tensorboard")
    assert code == 0
    assert list((here / "runs" / "job-1" / "tensorboard").iterdir())
    assert last_line(shown) == "next      tensorboard --logdir runs/job-1"


@pytest.mark.parametrize(
    ("arguments", "code", "says", "fix"),
    [
        (["train", "missing.py:job"], 2, "missing.py: there is no such file", "jobs_of_tests.py"),
        (["train", "jobs_of_tests.py:jobb"], 2, 'there is no function "jobb"', 'did you mean "job"?'),
        (["train", "jobs_of_tests.py:job", "--epochs", "0"], 2, "Job.epochs: is 0 (int)", "1 or more"),
        (["train", "jobs_of_tests.py:faulty"], 10, "jobs_of_tests.py:12, in <lambda>: RuntimeError", "fix this"),
        (["train", "jobs_of_tests.py:full"], 12, "no room", "smaller samples"),
        (["explain", "channel_last"], 2, 'there is no technique "channel_last"', 'did you mean "channels_last"?'),
        (["schedule", "jobs_of_tests.py:job", "--png", "no/where.png"], 15, "no/where.png: could not be", "folder"),
    ],
)
def test_a_failure_is_one_block_with_its_exit_code(here: Path, arguments: list[str], code: int, says: str, fix: str):
    ended, _, error = ran(*arguments)
    assert ended == code
    lines = error.partition("\n  ended ")[0].splitlines()  # of a run that had begun
    block = "\n".join(lines).rpartition("  error ")[2]
    what, _, remedy = " ".join(block.split()).partition(" fix ")
    assert says in what
    assert fix in remedy
    assert not CONTROL_CODE.search(error)


def apart(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What Python has come to with these arguments, in a process that signals can end."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)


@pytest.mark.fault("SIGINT once / twice")
def test_an_interrupt_ends_with_130_and_without_a_traceback(here: Path):
    # A process in the background of a shell is born deaf to this signal.
    hearing = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{hearing}; from hasten.cli import main; main()"
    done = apart("-c", program, "train", "jobs_of_tests.py:endless")
    assert signal.SIGINT + 128 == done.returncode == 130
    assert done.stderr.endswith(
        "\n\ninterrupted\n\n"
        "  ended     by Ctrl-C; step 1 is saved and verified in runs/endless-1/checkpoints/step-1\n"
        "  next      hasten train jobs_of_tests.py:endless --resume --run-dir runs/endless-1\n"
    )
    assert (here / "runs" / "endless-1" / "metrics.jsonl").is_file()


@pytest.mark.fault("SIGTERM, preemption notice")
def test_a_termination_ends_as_an_interrupt_does_with_143(here: Path):
    done = apart("-m", "hasten", "train", "jobs_of_tests.py:terminated")
    assert signal.SIGTERM + 128 == done.returncode == 143
    assert "interrupted\n\n  ended     by SIGTERM; step 1 is saved" in done.stderr


@pytest.mark.proof
def test_what_the_job_forks_ends_by_sigterm_as_any_process_does(here: Path):
    done = apart("-W", "ignore", "-m", "hasten", "train", "jobs_of_tests.py:pooled", "--max-steps", "2")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert (here / "ended_by").read_text() == str(-signal.SIGTERM)


def test_a_fault_of_our_own_is_said_and_keeps_its_traceback(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hasten.training.failures.as_failure.user_code_failed", lambda error: None)
    monkeypatch.setattr("hasten.training.failures.as_failure._in_the_job", lambda error: None)
    with pytest.raises(RuntimeError):
        ran("train", "jobs_of_tests.py:faulty")


def test_techniques_are_listed_and_each_can_be_explained():
    from hasten.techniques import ALL

    _, listed, _ = ran("techniques")
    for technique in ALL:
        assert f"  {technique.name} " in listed
        assert technique.headline in flat(listed)
        code, shown, _ = ran("explain", technique.name)
        assert code == 0
        assert technique.source in flat(shown)
        assert technique.values in flat(shown)
        assert f'technique = "{technique.name}"' in shown
        assert all(cost in flat(shown) for cost in technique.costs)
        words = technique.manual.split()
        assert shown.split()[1 : len(words) + 1] == words  # after the name, the whole page
        assert last_line(shown).startswith("next ")


def test_techniques_of_scripts_alone_are_listed_and_explained():
    from hasten.scripts.techniques import OF_SCRIPTS

    _, listed, _ = ran("techniques")
    for technique in OF_SCRIPTS:
        assert technique.headline in flat(listed)
        _, shown, _ = ran("explain", technique.name)
        assert (flat(technique.manual) in flat(shown), last_line(shown).endswith("tune train.py")) == (True, True)


def test_a_job_is_not_run_by_a_plan_that_edits_a_script(here: Path):
    Path("plan.toml").write_text(
        '[[choice]]\ntechnique = "cache_decoded_images"\nvalue = true\n'
        '[script]\nscript = "train.py"\nsources = {}\ndevice = "cpu"\noptimizers = []\n'
    )
    code, _, said = ran("train", "jobs_of_tests.py:digits", "--plan", "plan.toml")
    assert code == 2
    assert "edits the source of a script" in flat(said)


def test_a_schedule_is_drawn_before_training(here: Path):
    code, shown, _ = ran("schedule", "jobs_of_tests.py:job", "--png", "rate.png")
    assert code == 0
    assert re.search(r"^  verdict +Learning rate 0.1000 → 0.1000 → 0.1000 over \d+ steps$", shown, re.MULTILINE)
    assert "█" in shown
    assert (here / "rate.png").read_bytes().startswith(b"\x89PNG")
    assert last_line(shown) == "next      hasten train jobs_of_tests.py:job"


def test_a_search_for_a_microbatch_shows_every_size_that_ran(here: Path):
    code, shown, _ = ran("profile", "jobs_of_tests.py:job", "--microbatch")
    assert code == 0
    assert re.search(r"^  8 +[\d.]+ .s ", shown, re.MULTILINE)
    assert re.search(r"^  verdict +Fastest microbatch: \d of 8 samples, .* a step$", shown, re.MULTILINE)
    assert last_line(shown) == "next      hasten explain microbatch"


def test_a_profile_shows_seconds_work_and_memory(here: Path):
    code, shown, _ = ran("profile", "jobs_of_tests.py:job", "--plan", "plan.toml")
    assert code == 0
    for label in ("verdict", "why", "work", "reached", "memory", "fragments", "at the peak", "activations of"):
        assert re.search(rf"^  {label} ", shown, re.MULTILINE)
    assert "72.0 FLOP a sample" in shown
    assert last_line(shown) == "next      hasten techniques"
    assert re.search(r"^  verdict +[\d.]+ .s a step, [\d,]+ samples/s$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    "line",
    [
        "techniques",
        "explain compile",
        "explain H201",
        "schedule jobs_of_tests.py:job --plan plan.toml",
        "schedule jobs_of_tests.py:job --range-test",
        "profile jobs_of_tests.py:job",
        "profile jobs_of_tests.py:job --microbatch",
        "train jobs_of_tests.py:with_valid --max-steps 1 --plan plan.toml",
    ],
)
def test_an_answer_fits_its_lines_and_is_one_object_for_a_program(here: Path, line: str):
    code, shown, _ = ran(*line.split())
    assert code == 0
    assert re.search("^  verdict +", shown, re.MULTILINE) or "explain" in line  # a page begins with its sentence
    assert [each for each in shown.splitlines() if len(each) > 100] == []
    code, answer, _ = ran(*line.split(), "--json")
    assert code == 0
    found = json.loads(answer)
    assert flat(found["sentence"]) in flat(shown) or "train" in line or "profile" in line  # which measure again
    assert found["next"] == last_line(shown).partition(" ")[2].strip()


@pytest.mark.parametrize(
    "line", ["train jobs_of_tests.py:full", "train jobs_of_tests.py:jobb", "report nothing.toml", "explain nothing"]
)
def test_a_failure_is_one_object_for_a_program_as_well(here: Path, line: str):
    code, answer, shown = ran(*line.split(), "--json")
    found = json.loads(answer)
    assert [*found] == ["error", "where", "fix", "exit_code"]
    assert found["exit_code"] == code != 0
    for text in (found["error"], found["where"], found["fix"]):
        assert flat(text) in flat(shown)


@pytest.mark.parametrize(("seconds", "says"), [(60.0, True), (5.0, False)])
def test_a_run_beside_other_programs_says_so(here: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, says: bool):
    load = Load(seconds=seconds, cores=2, others=1.0, idle=0.0)
    monkeypatch.setattr("hasten.measure.processor_load.LoadClock.load", lambda clock: load)
    shown = ran("train", "jobs_of_tests.py:job", "--max-steps", "1")[1]
    note = "  note      other programs used 50 % of the CPU: a quiet machine trains faster\n  next "
    assert (note in shown) is says


def test_an_answer_that_finds_no_space_is_no_bug_of_hasten():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "hasten", "techniques"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 15
    assert "standard output: cannot be written: No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
