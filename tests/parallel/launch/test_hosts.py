"""Hosts that train one run: as one process does, and when one of them is lost and comes again."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

import hasten
from support.ranks import host_jobs
from support.ranks.hosts import FIRST, SECOND, Groups, Hosts, Namespaces, hosts_of, torchrun, trained, why_no_namespaces
from support.ranks.launching import losses, still_there

pytestmark = pytest.mark.proof

# Of a launcher that stays when another host's is replaced: each start has a store of its own.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.fixture(params=[Namespaces, Groups], ids=lambda kind: kind.name)
def hosts(request, tmp_path, tmp_path_factory):
    """Where the machine has no namespaces, groups of processes take their place."""
    kind = request.param
    if kind is Namespaces and why_no_namespaces(tmp_path_factory.getbasetemp()):
        kind = Groups
    with hosts_of(kind, tmp_path) as made:
        yield made


@pytest.fixture
def link(hosts):
    """Between the hosts."""
    if not isinstance(hosts.network, Namespaces):
        pytest.skip("groups of processes have no link that could be cut")
    return hosts.network


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process that nothing cuts."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    hasten.train(host_jobs.job(), run_dir=folder, receivers=[])
    return folder


def is_as(found: Path, wanted: Path) -> bool:
    assert losses(found) == pytest.approx(losses(wanted), rel=1e-5)
    weights = load_file(found / "model.safetensors")
    for name, weight in load_file(wanted / "model.safetensors").items():
        assert_close(weights[name], weight, rtol=1e-5, atol=1e-6)
    return True


def on(hosts: Hosts, host: str, job: str, *options: str, processes: int = 1, stays: bool = False, meets: str = FIRST):
    """stays: whether its launcher does, when the other host is lost."""
    command = torchrun(hosts, host, job, *options, processes=processes, restarts=2 * stays, meets=meets)
    return hosts.begin(host, command, **(OWN_STORE if stays else {}))


def reached(hosts: Hosts) -> bool:
    return (hosts.folder / host_jobs.REACHED).exists()


def trainings(hosts: Hosts) -> list[psutil.Process]:
    """Processes of the run, without their launchers."""
    found = [each for each in still_there(hosts.folder) if each.status() != psutil.STATUS_ZOMBIE]
    return [each for each in found if each.cmdline()[1:4] == ["-u", "-m", "hasten"]]


def test_two_hosts_with_unequal_processes_train_what_one_process_does(hosts, alone):
    first, second = on(hosts, FIRST, "job", processes=2), on(hosts, SECOND, "job")
    assert (first.ended(), second.ended()) == (0, 0), first.told() + second.told()
    assert is_as(hosts.folder / "run", alone)
    assert "verdict" in first.told()
    assert "step" not in second.told()


@pytest.mark.trap(23)
@pytest.mark.fault("one rank dies, a collective hangs")
def test_a_host_that_is_lost_is_named_and_the_one_in_its_place_goes_on_with_the_run(hosts, alone):
    first, second = (on(hosts, host, "second_pauses", stays=True) for host in (FIRST, SECOND))
    hosts.until(lambda: reached(hosts))
    second.kill()
    third = on(hosts, SECOND, "second_pauses", stays=True)
    assert (first.ended(), third.ended()) == (0, 0), first.told() + third.told()
    assert "rank 1: its connection broke" in first.told()
    assert "Resuming " in first.told()
    assert is_as(hosts.folder / "run", alone)


@pytest.mark.parametrize("said", [(), ("--resume",)], ids=["by itself", "told to"])
def test_the_host_of_the_first_process_is_replaced_and_the_run_goes_on(hosts, alone, said):
    """Its store and its folder's lock go with it; the launchers meet at the other host."""
    first, second = (on(hosts, host, "first_pauses", stays=True, meets=SECOND) for host in (FIRST, SECOND))
    hosts.until(lambda: reached(hosts))
    first.kill()
    third = on(hosts, FIRST, "first_pauses", *said, stays=True, meets=SECOND)
    assert (second.ended(), third.ended()) == (0, 0), second.told() + third.told()
    assert "rank 0: its connection broke" in second.told()
    assert "not empty" not in third.told()
    assert is_as(hosts.folder / "run", alone)


@pytest.mark.fault("one rank dies, a collective hangs")
@pytest.mark.fault("SIGKILL mid-step")
def test_the_host_where_all_meet_is_lost_and_all_go_on_when_they_are_started_again(hosts, alone):
    first, second = (on(hosts, host, "first_pauses", stays=True) for host in (FIRST, SECOND))
    hosts.until(lambda: reached(hosts))
    first.kill()
    assert second.ended() == 1
    assert "rank 0: its connection broke" in second.told()
    assert still_there(hosts.folder) == []
    again = [on(hosts, host, "first_pauses", "--resume") for host in (FIRST, SECOND)]
    assert [each.ended() for each in again] == [0, 0], again[0].told() + again[1].told()
    assert "Resuming " in again[0].told()
    assert is_as(hosts.folder / "run", alone)


def by_srun(hosts: Hosts, job: str, *options: str, **environment: str):
    """One process on each host, told of the others as SLURM's srun does."""
    named = f"{hosts.network.address(FIRST)},{hosts.network.address(SECOND)}"
    step = {"SLURM_JOB_ID": str(hosts.network.port), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    step |= {"SLURM_STEP_NODELIST": named, "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_LOCALID": "0"}
    command = [sys.executable, "-m", "hasten", *trained(job, *options)]
    return [
        hosts.begin(host, command, **step, SLURM_PROCID=number, SLURM_NODEID=number, **environment)
        for number, host in [("0", FIRST), ("1", SECOND)]
    ]


@pytest.mark.fault("one rank dies, a collective hangs")
def test_processes_of_srun_that_lose_their_link_name_who_is_missing_and_end(hosts, link):
    first, second = by_srun(hosts, "second_pauses", HASTEN_WAIT_SECONDS="4")
    hosts.until(lambda: reached(hosts))
    link.cut(SECOND)
    (hosts.folder / host_jobs.GO_ON).touch()
    assert (first.ended(), second.ended()) == (14, 14), first.told() + second.told()
    assert "rank 1: the other ranks waited 4 s for it" in first.told()
    assert "rank 0: the other ranks waited 4 s for it" in second.told()
    assert still_there(hosts.folder) == []


@pytest.mark.fault("one rank dies, a collective hangs")
def test_processes_of_launchers_that_lose_their_link_end_and_go_on_when_it_is_back(hosts, link, alone):
    """The launcher that cannot reach the other one's store may wait for as long as its system's TCP does."""
    told = {"HASTEN_WAIT_SECONDS": "4"}
    first, second = (hosts.begin(host, torchrun(hosts, host, "second_pauses"), **told) for host in (FIRST, SECOND))
    hosts.until(lambda: reached(hosts))
    assert len(trainings(hosts)) == 2
    link.cut(SECOND)
    (hosts.folder / host_jobs.GO_ON).touch()
    assert first.ended() == 1
    assert "rank 1: the other ranks waited 4 s for it" in first.told()
    hosts.until(lambda: "rank 0: the other ranks waited 4 s for it" in second.told(), first)
    hosts.until(lambda: not trainings(hosts), first)
    second.kill()
    link.mend(SECOND)
    again = [on(hosts, host, "second_pauses", "--resume") for host in (FIRST, SECOND)]
    assert [each.ended() for each in again] == [0, 0], again[0].told() + again[1].told()
    assert "Resuming " in again[0].told()
    assert is_as(hosts.folder / "run", alone)


def test_processes_of_srun_train_what_one_process_does(hosts, alone):
    begun = by_srun(hosts, "job")
    assert [each.ended() for each in begun] == [0, 0], begun[0].told() + begun[1].told()
    assert is_as(hosts.folder / "run", alone)


def test_a_host_that_does_not_come_is_missed_where_all_meet(hosts):
    place = {"MASTER_ADDR": hosts.network.address(FIRST), "MASTER_PORT": str(hosts.network.port)}
    told = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "HASTEN_WAIT_SECONDS": "3"}
    command = [sys.executable, "-m", "hasten", *trained("job")]
    waiting = hosts.begin(FIRST, command, **place, **told)
    assert waiting.ended() == 14, waiting.told()
    assert f"not all processes of this run reached {place['MASTER_ADDR']} in 3 s" in waiting.told()
