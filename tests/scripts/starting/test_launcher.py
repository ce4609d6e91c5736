"""A script that a launcher has started: which process tunes it, and which commands are shown."""

from __future__ import annotations

import pytest

from hasten.cli.tuning.launcher import hasten_words, leads_script, python_words
from hasten.errors import Misconfigured
from hasten.facts.ranks import environment_of, launched

RANKS = 2


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what a test changes: it is restored afterwards."""
    for name in (*environment_of(0, RANKS, 0), "OMP_NUM_THREADS", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def start(monkeypatch: pytest.MonkeyPatch, rank: int, **others: str) -> None:
    for name, value in {**environment_of(rank, RANKS, 0), **others}.items():
        monkeypatch.setenv(name, value)


def test_one_process_leads_and_is_shown_without_a_launcher():
    assert leads_script(None)
    assert (python_words(), hasten_words("run")) == (["python"], ["hasten", "run"])


def test_only_rank_0_has_something_to_do(monkeypatch):
    start(monkeypatch, rank=1)
    assert not leads_script(None)
    start(monkeypatch, rank=0)
    assert leads_script(None)
    assert hasten_words("tune") == ["torchrun", "--nproc-per-node", "2", "-m", "hasten", "tune"]


def test_nproc_makes_this_process_rank_0_as_torchrun_does():
    assert leads_script(RANKS)
    assert (launched().all.rank, launched().all.size, launched().here.size) == (0, RANKS, RANKS)
    assert python_words() == ["torchrun", "--nproc-per-node", "2"]


def test_what_accelerate_has_started_is_shown_so(monkeypatch):
    start(monkeypatch, rank=0, ACCELERATE_MIXED_PRECISION="no")
    assert python_words() == ["accelerate", "launch", "--num_processes", "2"]


def test_several_machines_are_refused(monkeypatch):
    start(monkeypatch, rank=0, WORLD_SIZE="4")
    with pytest.raises(Misconfigured, match="several machines"):
        leads_script(None)


def test_another_number_than_the_launchers_is_refused(monkeypatch):
    start(monkeypatch, rank=0)
    with pytest.raises(Misconfigured, match="a launcher has started 2"):
        leads_script(3)
