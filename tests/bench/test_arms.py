"""Arms that are measured in turns, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from bench.arms import Arm, Protocol, control, refuse_noise, run_arms
from bench.guard import guarded

from hasten.errors import Hang, InvalidMeasurement, UserCodeFailed
from hasten.measure.paired_timing import Window, compare, interleaved

ARMS = Path(__file__).parents[1] / "support" / "bench" / "trivial_arms.py"
ROOT = Path(__file__).parents[2]
SHORT = Protocol(rounds=12, steps=50, warmup_steps=5, limit_seconds=60)


def arm(function: str, called: str = "", **arguments: object) -> Arm:
    return Arm(name=called or function, entry=f"{ARMS}:{function}", arguments=arguments)


def test_an_arm_measured_against_itself_gives_a_verdict_on_twelve_pairs():
    found = control(arm("additions", many=200), SHORT)
    assert found.baseline == "additions"
    assert found.speedup.pairs == 12
    assert found.speedup.low <= found.speedup.ratio <= found.speedup.high
    assert all(window.steps == 50 for pair in found.pairs for window in pair)


def test_an_arm_of_another_checkout_runs_that_checkouts_package_and_benchmark_code(tmp_path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "src" / "hasten").mkdir(parents=True)
    (tmp_path / "src" / "hasten" / "__init__.py").write_text("SECONDS = 7.0\n")
    (tmp_path / "bench" / "child.py").write_bytes((ROOT / "bench" / "child.py").read_bytes())
    (tmp_path / "bench" / "arms_of_then.py").write_text(
        "import hasten\ndef takes():\n    return lambda steps: hasten.SECONDS\n"
    )
    then = Arm(name="then", entry=f"{tmp_path}/bench/arms_of_then.py:takes", tree=tmp_path)
    assert {window.seconds for window in run_arms([then], replace(SHORT, rounds=2)).windows} == {7.0}


def test_no_window_of_one_arm_begins_inside_one_of_another(tmp_path):
    journal = str(tmp_path / "journal")
    arms = [arm("notes_its_turns", name, name=name, journal=journal) for name in ("a", "b", "c")]
    run_arms(arms, Protocol(rounds=3, steps=50, warmup_steps=0, limit_seconds=60))
    lines = Path(journal).read_text().splitlines()
    expected = [f"{name} {what}" for name in interleaved("abc", 3) for what in ("begins", "ends")]
    assert lines == expected


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's state")
def test_an_arm_and_the_processes_that_it_started_are_stopped_while_another_has_its_turn(tmp_path):
    arms = [arm(function, journal=str(tmp_path / "journal")) for function in ("starts_another", "looks_at_others")]
    measured = run_arms(arms, Protocol(rounds=2, steps=50, warmup_steps=5, limit_seconds=20))
    assert [window.arm for window in measured.windows] == list(interleaved([each.name for each in arms], 2))


@pytest.mark.proof
def test_arms_are_built_at_the_same_time_where_the_protocol_says_so(tmp_path):
    both = [arm("waits_for_another", a, folder=str(tmp_path), name=a, other=b) for a, b in ("ab", "ba")]
    protocol = Protocol(rounds=2, steps=50, warmup_steps=5, limit_seconds=20, together=True)
    assert [cost.arm for cost in run_arms(both, protocol).one_off] == ["a", "b"]
    for each in tmp_path.iterdir():
        each.unlink()
    with pytest.raises(Hang):
        run_arms(both, Protocol(rounds=2, steps=50, warmup_steps=5, limit_seconds=2))


def test_a_window_is_of_as_many_steps_as_last_for_the_seconds_of_the_protocol():
    """By the pace after the warm-up, whose first steps are slow."""
    protocol = Protocol(rounds=2, warmup_steps=5, limit_seconds=60, seconds=2.5)
    measured = run_arms([arm("claims", name, seconds=each) for name, each in (("a", 0.25), ("b", 0.125))], protocol)
    assert {(window.arm, window.steps) for window in measured.windows} == {("a", 10), ("b", 20)}


@pytest.mark.parametrize(
    ("function", "reported"),
    [
        ("cannot_be_built", "LookupError: no such model"),
        ("is_killed", "died: killed by SIGKILL\nlast words"),
    ],
)
def test_an_arm_that_fails_is_named_with_the_class_of_its_error(function, reported):
    with pytest.raises(UserCodeFailed, match=reported) as failure:
        run_arms([arm("additions"), arm(function)], SHORT)
    assert failure.value.where == f'arm "{function}"'


def test_an_arm_that_never_answers_ends_the_benchmark():
    with pytest.raises(Hang, match="no answer within 1 s"):
        run_arms([arm("never_answers")], Protocol(limit_seconds=1))


@pytest.mark.proof
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's state")
def test_no_process_outlives_a_benchmark_that_is_killed(tmp_path):
    journal = tmp_path / "journal"
    arms = [arm("starts_another", journal=str(journal)), arm("tells_that_it_is_built", journal=str(journal))]
    code = f"from bench.arms import *; run_arms({arms!r}, Protocol(rounds=2, steps=50, warmup_steps=5))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as benchmark:
        while len(processes := (journal.read_text() if journal.exists() else "").split()) < 3:
            assert benchmark.poll() is None
        benchmark.kill()
    try:
        # One that nobody has asked for its end is told as a zombie. Where one lives on, the test's own limit ends this.
        while any(_state(process) not in ("", "Z") for process in processes):
            os.sched_yield()
    finally:
        for process in processes:
            if _state(process) not in ("", "Z"):
                os.kill(int(process), signal.SIGKILL)


def _state(process: str) -> str:
    """One letter; empty when there is no such process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


@pytest.mark.trap(50)
def test_a_control_that_finds_a_difference_stops_the_benchmark():
    def windows(slower: float) -> list[Window]:
        seconds = {"a": 1.0, "a again": slower}
        return [Window(arm=name, steps=50, seconds=seconds[name]) for name in interleaved(["a", "a again"], 12)]

    refuse_noise(compare(windows(1.0), baseline="a", challenger="a again"))
    with pytest.raises(InvalidMeasurement, match="excludes 1"):
        refuse_noise(compare(windows(1.1), baseline="a", challenger="a again"))


@pytest.fixture
def group():
    leader = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield leader
    leader.kill()
    leader.wait()


def test_a_group_is_left_alone_inside_and_ends_afterwards(group):
    with guarded(group.pid):
        os.killpg(group.pid, signal.SIGSTOP)
        assert group.poll() is None
    assert group.wait(60) == -signal.SIGKILL


def test_a_group_ends_where_the_process_that_watches_over_it_is_killed(group):
    code = f"""
import os, signal
from bench.guard import guarded
with guarded({group.pid}):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert group.wait(60) == -signal.SIGKILL
