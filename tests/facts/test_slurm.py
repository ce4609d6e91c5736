"""What srun tells its processes, read as torchrun's word."""

from __future__ import annotations

import pytest

from hasten.facts.ranks import Ranks, as_torchrun, first_host, launched, tasks_on

STEP = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "123456",
}


def test_a_process_of_a_step_knows_its_place_and_where_all_meet():
    found = launched(STEP)
    assert (found.all, found.here) == (Ranks(5, 7), Ranks(1, 3))
    told = as_torchrun(STEP)
    assert told["MASTER_ADDR"] == "gpu07"
    assert 20_000 <= int(told["MASTER_PORT"]) < 40_000


@pytest.mark.parametrize(
    "changes",
    [{"SLURM_STEP_ID": None}, {"SLURM_PROCID": None}, {"WORLD_SIZE": "1"}, {"SLURM_PTY_PORT": "5"}],
    ids=["a batch script", "no number", "told already", "a shell"],
)
def test_what_is_no_process_of_a_step_is_alone(changes):
    told = {name: value for name, value in (STEP | changes).items() if value is not None}
    assert as_torchrun(told) == {}
    assert launched(told).all == Ranks(0, 1)


def test_a_meeting_point_of_ones_own_stays():
    assert (
        as_torchrun(STEP | {"MASTER_ADDR": "here", "MASTER_PORT": "1"})
        .keys()
        .isdisjoint({"MASTER_ADDR", "MASTER_PORT"})
    )


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu7,gpu9", "gpu7"),
        ("gpu[07-12,14]", "gpu07"),
        ("rack[1-2]-gpu,other", "rack1-gpu"),
        ("a[3,5],b[1-2]", "a3"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_list_is_where_all_meet(hosts, first):
    assert first_host(hosts) == first


@pytest.mark.parametrize(
    ("counts", "node", "tasks"),
    [("4(x2),3", "1", 4), ("4(x2),3", "2", 3), ("8", "0", 8), ("8", "1", None), ("", "0", None), ("8", "?", None)],
)
def test_a_host_has_as_many_processes_as_its_place_in_the_list_says(counts, node, tasks):
    assert tasks_on(counts, node) == tasks
