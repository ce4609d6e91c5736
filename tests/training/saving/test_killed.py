"""A run that is killed anywhere goes on as if nothing had happened: every loss to the bit, every line of its log."""

from __future__ import annotations

import os
import random
import selectors
import shutil
from pathlib import Path

import pytest

from support.checkpoint import file_faults
from support.training import killed_jobs
from support.training.killed_jobs import JOBS

# Processes are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.trap(36),
    pytest.mark.trap(37),
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Each job's folder after a run that nobody disturbed."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("whole") / "run"
            killed_jobs.train(name, made[name])  # here, so that what is forked finds all of torch loaded
        return made[name]

    return of


def check_same(found: Path, wanted: Path) -> None:
    assert killed_jobs.trace(found) == killed_jobs.trace(wanted)
    assert killed_jobs.weights(found) == killed_jobs.weights(wanted)
    assert killed_jobs.final_state(found) == killed_jobs.final_state(wanted)
    assert not [path for path in found.rglob("*") if path.name.startswith(".")]  # leftovers


def killed_in_operations(name: str, folder: Path, first: int, second: int) -> bool:
    """Kill a run inside its file operation of one number, and the resumed one inside that of another; then let it end.
    False when one of the two did not come to that many."""
    came = file_faults.killed_inside(first, lambda: killed_jobs.train(name, folder))
    if came:
        came = file_faults.killed_inside(second, lambda: killed_jobs.train(name, folder))
    if came:
        assert file_faults.ended(killed_jobs.begun(lambda: killed_jobs.train(name, folder)))
    return came


@pytest.mark.parametrize(
    ("name", "first"), [("dropout perceptron", 42), ("dropout perceptron", 190), ("bucketed network", 110)]
)
@pytest.mark.fault("SIGKILL mid-step")
@pytest.mark.fault("killed during save, rotation or resume")
def test_a_run_goes_on_that_was_killed_inside_any_file_operation(tmp_path, uninterrupted, name, first):
    wanted = uninterrupted(name)
    killed_in_operations(name, tmp_path / "run", first, 9 + first % 60)
    check_same(tmp_path / "run", wanted)


TURNS = 12  # among which an exhaustive proof is dealt out


@pytest.mark.proof
@pytest.mark.parametrize("turn", range(1, TURNS + 1))
@pytest.mark.parametrize(("killed", "least"), [("run", 150), ("resumed run", 50)])
def test_each_file_operation_can_be_the_last_one(tmp_path, uninterrupted, killed, least, turn):
    """Of a run that begins, and then of one that goes on."""
    name = "dropout perceptron"
    wanted, came, number = uninterrupted(name), True, turn
    while came:
        folder = tmp_path / f"run-{number}"
        came = killed_in_operations(name, folder, *((number, 9) if killed == "run" else (100, number)))
        check_same(folder, wanted)
        number += TURNS
    assert number > least  # as many as there are


def killed_at_random(name: str, folder: Path, kills: int, chance: random.Random, seconds: float) -> int:
    """Kill runs of a job until so many were hit, each at an instant of its time; then let the last one end. How many
    were begun."""
    hit = begun = 0
    while True:
        begun += 1
        child = killed_jobs.begun(lambda: killed_jobs.train(name, folder))
        if hit == kills:
            assert file_faults.ended(child)
            return begun
        ends = os.pidfd_open(child)
        with selectors.DefaultSelector() as waiting:
            waiting.register(ends, selectors.EVENT_READ)
            ended = waiting.select(chance.uniform(0, seconds))
        os.close(ends)
        if ended:  # it was faster: the next one begins anew
            assert file_faults.ended(child)
            shutil.rmtree(folder)
            continue
        killed_jobs.killed(child)
        os.waitpid(child, 0)
        hit += 1


@pytest.mark.parametrize("name", ["dropout perceptron"])
@pytest.mark.fault("SIGKILL mid-step")
def test_a_run_goes_on_that_was_killed_at_random_instants(tmp_path, uninterrupted, name):
    wanted = uninterrupted(name)
    killed_at_random(name, tmp_path / "run", 2, random.Random(name), 0.5)
    check_same(tmp_path / "run", wanted)


@pytest.mark.proof
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("turn", range(14))
def test_two_hundred_kills_at_random_instants_change_nothing(tmp_path, uninterrupted, name, turn):
    """Five in each of 42 runs."""
    wanted = uninterrupted(name)
    killed_at_random(name, tmp_path / "run", 5, random.Random(f"{name} {turn}"), 0.8)
    check_same(tmp_path / "run", wanted)
