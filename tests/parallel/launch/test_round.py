"""Processes agree on a name for the round in which they meet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore  # where torch.distributed has it from

from hasten.errors import Hang
from hasten.facts.ranks import Ranks
from hasten.parallel.launch.rendezvous_round import round_of


def met(store: HashStore, size: int = 3) -> set[str]:
    with ThreadPoolExecutor(size) as pool:
        return {*pool.map(lambda rank: round_of(store, Ranks(rank, size), 30.0), range(size))}


def test_all_know_one_name_and_each_round_in_the_same_store_has_its_own():
    store = HashStore()
    first, second = met(store), met(store)
    assert len(first) == len(second) == 1
    assert first != second


def test_who_waits_for_one_that_does_not_come_says_so():
    store = HashStore()
    store.set("here/1", "of an earlier round")
    with pytest.raises(Hang, match="rank 1: the others have waited"):
        round_of(store, Ranks(0, 2), 0.0)
