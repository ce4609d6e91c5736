"""Signals that ask a run to end: saved at the next step, or out at once; and nothing is left behind."""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.checkpoint.store import Store
from hasten.errors import INTERRUPTED, TERMINATED, Terminated
from hasten.training.saving.stop_request import ONE_CTRL_C_SECONDS
from support import small_job
from support.checkpoint import file_faults
from support.training import killed_jobs

# Processes are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.trap(37),
]

Loss = Callable[[nn.Module, Any], Tensor]


def entropy(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def at_call(number: int, act: Callable[[], None]) -> Loss:
    """A loss that does something in one of its calls."""
    calls = {"made": 0}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        calls["made"] += 1
        if calls["made"] == number:
            act()
        return entropy(model, batch)

    return loss


def sent(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def job(loss: Loss = entropy, **changes: Any) -> hasten.Job:
    fields: dict[str, Any] = {"loss": loss, "log_every": 1, "epochs": 4}
    return small_job(**(fields | changes))


def train(folder: Path, made: hasten.Job, **options: Any) -> None:
    hasten.resume(made, run_dir=folder, receivers=[], **options)


def newest(folder: Path) -> int:
    """The step of the newest checkpoint, which is whole."""
    checkpoint = Store(folder / "checkpoints").found()[0]
    checkpoint.verify()
    return checkpoint.step


TAKEN = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        signal.SIGTERM,
        *(pytest.param(number, marks=pytest.mark.proof) for number in TAKEN[2:]),
    ],
)
@pytest.mark.fault("SIGTERM, preemption notice")
@pytest.mark.fault("SIGINT once / twice")
def test_a_signal_in_a_step_lets_it_end_and_saves_it(tmp_path, number):
    before = [signal.getsignal(each) for each in TAKEN]
    with pytest.raises(KeyboardInterrupt) as caught:
        train(tmp_path / "run", job(at_call(7, sent(number))))
    assert getattr(caught.value, "by", "SIGINT") == signal.Signals(number).name
    assert isinstance(caught.value, Terminated) == (number != signal.SIGINT)
    assert newest(tmp_path / "run") == 7
    assert [signal.getsignal(each) for each in TAKEN] == before
    train(tmp_path / "run", job())
    train(tmp_path / "whole", job())
    assert killed_jobs.trace(tmp_path / "run") == killed_jobs.trace(tmp_path / "whole")
    assert killed_jobs.weights(tmp_path / "run") == killed_jobs.weights(tmp_path / "whole")


@pytest.mark.parametrize("evaluate_every", [None, 3])
def test_a_signal_in_an_evaluation_gives_it_up_and_it_is_made_again(tmp_path, evaluate_every):
    valid = small_job().train

    def judged(asked: Callable[[], None]) -> hasten.Job:
        def loss(model: nn.Module, batch: Any) -> Tensor:
            if not model.training:
                asked()
            return entropy(model, batch)

        return job(loss, valid=valid, evaluate_every=evaluate_every)

    asks = iter([lambda: None, sent(signal.SIGTERM)])
    with pytest.raises(Terminated):
        train(tmp_path / "run", judged(lambda: next(asks, lambda: None)()))
    assert newest(tmp_path / "run") == (evaluate_every or 5)
    train(tmp_path / "run", judged(lambda: None))
    train(tmp_path / "whole", judged(lambda: None))
    assert killed_jobs.trace(tmp_path / "run") == killed_jobs.trace(tmp_path / "whole")


@pytest.mark.fault("SIGTERM, preemption notice")
def test_a_save_that_would_not_fit_into_the_time_of_grace_is_left_out_and_the_one_before_stands(tmp_path, monkeypatch):
    from hasten.training.saving.saver import Saver

    poll = Saver.poll

    def slow(self: Saver) -> None:
        poll(self)
        self.save_seconds = 100.0

    monkeypatch.setattr(Saver, "poll", slow)
    with pytest.raises(Terminated):
        saving = hasten.Saving(every_steps=4, grace_seconds=30)
        train(tmp_path / "run", job(at_call(7, sent(signal.SIGTERM))), saving=saving)
    assert newest(tmp_path / "run") == 4
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "the last save took 100.0 s" in lines[-1]["text"]


# ---- processes of their own


PROGRAM = """
import json, os, sys, time
from pathlib import Path
sys.path[:] = json.loads(sys.argv[1])
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from hasten.cli import main
sys.argv = ["hasten", *sys.argv[2:]]
main()
"""

JOBS = '''
import os, sys, time
import torch
from torch import nn
from torch.nn import functional
from support import small_job

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return torch.zeros(6), torch.tensor(0)

def told(text):
    print(text, flush=True)

def stuck():
    """Its second step is one that no exception reaches: a wait in the system that goes on when a signal came."""
    calls = []
    def loss(model, batch):
        calls.append(1)
        if len(calls) == 2:
            told("it hangs")
            import ctypes
            libc = ctypes.CDLL(None)
            while True:
                libc.pause()
        return functional.cross_entropy(model(batch[0]), batch[1])
    return small_job(loss=loss)

def working():
    """With worker processes, and steps that last."""
    calls = []
    def loss(model, batch):
        calls.append(1)
        if len(calls) == 3:
            told("it works")
        torch.mm(torch.zeros(400, 400), torch.zeros(400, 400))
        return functional.cross_entropy(model(batch[0]), batch[1])
    loader = torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=2)
    return small_job(loss=loss, train=loader, batch_size=None, epochs=1000)
'''


def begun(folder: Path, function: str, *options: str) -> subprocess.Popen[str]:
    (folder / "jobs_of_signals.py").write_text(JOBS)
    arguments = ["train", "jobs_of_signals.py:" + function, "--run-dir", "run", *options]
    path = [str(Path(__file__).parents[2]), *sys.path]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(path), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def until_it_says(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(process.stderr.read() if process.stderr else "")


def until_it_warns(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError("it ended without a word")


LEFT = (
    "step 1 is saved in run/checkpoints/step-1; "
    "resume with  hasten train jobs_of_signals.py:stuck --resume --run-dir run"
)


@pytest.mark.fault("SIGINT once / twice")
def test_ctrl_c_pressed_again_ends_a_step_that_hangs(tmp_path):
    process = begun(tmp_path, "stuck")
    until_it_says(process, "it hangs")
    os.killpg(process.pid, signal.SIGINT)
    until_it_warns(process, "Ctrl-C once more ends without saving")
    select.select([], [], [], 2 * ONE_CTRL_C_SECONDS)  # as a person takes to press it again
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == INTERRUPTED
    assert newest(tmp_path / "run") == 1
    assert error.splitlines()[-1] == f"ended by Ctrl-C; {LEFT}"


@pytest.mark.proof
@pytest.mark.parametrize("heard", [True, False], ids=["heard", "nobody can hear it"])
@pytest.mark.fault("SIGTERM, preemption notice")
def test_a_process_that_hangs_goes_by_itself_before_its_time_of_grace_is_over(tmp_path, heard):
    process = begun(tmp_path, "stuck", "--grace", "1.5")
    until_it_says(process, "it hangs")
    assert process.stderr is not None
    if not heard:
        process.stderr.close()
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate()
    assert process.returncode == TERMINATED
    assert newest(tmp_path / "run") == 1
    if heard:
        assert "ending without a new checkpoint" in error
        assert error.splitlines()[-1] == f"ended by SIGTERM; {LEFT}"


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.proof) for each in (signal.SIGTERM, signal.SIGHUP))],
)
def test_a_signal_that_was_ignored_before_stays_so(tmp_path, number):
    """As Ctrl-C is by what a shell starts in the background, and SIGHUP by what nohup starts."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        train(tmp_path / "run", job(at_call(7, sent(number))))
    finally:
        signal.signal(number, before)
    assert newest(tmp_path / "run") == 20


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_the_whole_group_saves_although_it_may_end_the_loader_workers(tmp_path, number):
    process = begun(tmp_path, "working")
    until_it_says(process, "it works")
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    os.killpg(process.pid, number)
    _, error = process.communicate()
    assert process.returncode == (INTERRUPTED if number == signal.SIGINT else TERMINATED), error
    step = newest(tmp_path / "run")
    assert step >= 3
    assert f"; step {step} is saved and verified in run/checkpoints/step-{step}\n  next      hasten train" in error
    psutil.wait_procs(family)
    assert not [each for each in family if each.is_running()]


@pytest.mark.proof
def test_a_terminal_that_is_closed_lets_the_run_save_and_end(tmp_path):
    """As when a connection to another machine is lost: what is written to the terminal fails from then on."""
    ours, theirs = os.openpty()

    def in_the_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    (tmp_path / "jobs_of_signals.py").write_text(JOBS)
    path = json.dumps([str(Path(__file__).parents[2]), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, path, "train", "jobs_of_signals.py:working", "--run-dir", "run"],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=in_the_terminal,
    )
    os.close(theirs)
    said = b""
    while b"it works" not in said:
        said += os.read(ours, 4096)
    os.close(ours)
    assert process.wait() == TERMINATED
    assert newest(tmp_path / "run") >= 3


# ---- many times


def ended_by_sigterm(folder: Path, seconds: float) -> bool:
    """Train in a child that is told to end at an instant; False when it was faster."""

    def work() -> None:
        try:
            killed_jobs.train("dropout perceptron", folder, epochs=40)
        except Terminated:
            os._exit(TERMINATED)

    child = killed_jobs.begun(work)
    ends = os.pidfd_open(child)
    faster = select.select([ends], [], [], seconds)[0]
    os.close(ends)
    if not faster:
        os.kill(child, signal.SIGTERM)
    return not file_faults.ended(child, but=TERMINATED)


def check_sigterm(folder: Path, chance: random.Random) -> None:
    """Whatever it hit, the step that was logged last is the one that is saved."""
    while not ended_by_sigterm(folder, chance.uniform(0.3, 1.5)):
        pass
    logged = [event[0] for event in killed_jobs.trace(folder) if isinstance(event, tuple)]
    assert newest(folder) == logged[-1]
    assert not list(folder.rglob(".*"))


@pytest.mark.proof
@pytest.mark.parametrize("turn", range(10))
def test_a_hundred_sigterms_save_a_hundred_times(tmp_path, turn):
    killed_jobs.train("dropout perceptron", tmp_path / "warm")  # so that what is forked finds all of torch loaded
    for number in range(10):
        check_sigterm(tmp_path / f"run-{number}", random.Random(f"{turn} {number}"))
