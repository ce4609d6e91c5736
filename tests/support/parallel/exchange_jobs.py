"""What ranks say to each other beside their training; a module of its own, so that started processes can import it by
name."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from hasten.facts.ranks import WAIT
from hasten.parallel.collectives import present_ranks
from hasten.parallel.launch.rank_messages import Exchange

TEXTS = ["", "é", "x" * 100_000, "the second\nline"]


def said() -> list[list[str]]:
    """What the leader said, and what the leader heard; while the ranks train in another thread."""
    ranks = present_ranks()
    exchange, over = Exchange(ranks), threading.Event()

    def talk() -> list[list[str]]:
        found = [[exchange.from_leader(each if ranks.leads else "not the leader's") for each in TEXTS]]
        found += [exchange.to_leader(TEXTS[(number + ranks.rank) % len(TEXTS)]) for number in range(len(TEXTS))]
        found.append(exchange.to_leader(""))
        over.set()
        return found

    with ThreadPoolExecutor(1) as beside:
        talking = beside.submit(talk)
        together = torch.tensor([0])
        while together.item() < ranks.size:  # until both have talked
            together = torch.tensor([int(over.is_set())])
            dist.all_reduce(together)
        return talking.result()


def waited_in_vain() -> list[float]:
    """The second does not come: the seconds until the first is told, and whether that was as an error."""
    os.environ[WAIT] = "1"
    ranks = present_ranks()
    exchange = Exchange(ranks)
    began, failed = time.monotonic(), 0
    if ranks.leads:
        try:
            exchange.to_leader("")
        except RuntimeError:
            failed = 1
    return [time.monotonic() - began, failed]
