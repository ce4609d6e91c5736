"""Starts plain runs of a script: one process, or those of all ranks that a launcher has set, as that starts them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Self

from hasten.facts.ranks import environment_of, launched
from hasten.regular_files import read_regular
from hasten.scripts.trials.plain_run import PlainRun, PlainSteps
from hasten.tuning.trials.process_tree import how_it_ended, kill_all
from hasten.tuning.trials.trial_process import END_SECONDS, environment_within, with_hash_seed

_CHECK_SECONDS = 0.05


class PlainRanks:
    """asked: of rank 0. folder: of their own, which the caller removes after the context."""

    def __init__(self, asked: PlainRun, folder: Path) -> None:
        from hasten.parallel.launch.loopback import store_on_loopback

        size, self._asked, self._folder = launched().all.size, asked, str(folder)
        self._store = store_on_loopback() if size > 1 else None  # of their process group
        self._processes = list[subprocess.Popen[bytes]]()
        self._answers = [folder / f"answer-{rank}.json" for rank in range(size)]

    def _start(self, rank: int, environment: dict[str, str]) -> None:
        updates = None if rank else self._asked.updates
        asked = replace(self._asked, answer=str(self._answers[rank]), updates=updates)
        command = [sys.executable, "-m", "hasten.scripts.trials.plain_run", json.dumps(asdict(asked))]
        process = subprocess.Popen(
            command,
            env=with_hash_seed(environment) if asked.is_seeded else environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._processes.append(process)

    def __enter__(self) -> Self:
        size = len(self._answers)
        with ExitStack() as failing:
            failing.push(self)
            for rank in range(size):
                own = environment_of(rank, size, self._store.port) if self._store is not None else {}
                self._start(rank, {**environment_within(self._folder), **own})
            failing.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._processes:
            kill_all(each.pid, END_SECONDS)
            each.wait()

    def steps(self, limit_seconds: float) -> PlainSteps:
        """Of rank 0; where ranks fail, the failure of the first one."""
        until = time.monotonic() + limit_seconds
        while time.monotonic() < until:
            others = [self._found(rank) for rank in range(1, len(self._processes))]
            found = [self._found(0), *others]  # it ends with an answer first, and then the others without
            if found[0] is not None and not found[0].failed:
                return found[0]
            if failed := [(each.ended, rank, each) for rank, each in enumerate(found) if each and each.failed]:
                _, rank, first = min(failed, key=lambda each: each[:2])
                return replace(first, failed=f"rank {rank}: {first.failed}") if rank else first
            time.sleep(_CHECK_SECONDS)
        return PlainSteps(failed=f"it did not take {self._asked.updates} steps within {limit_seconds:g} s")

    def _found(self, rank: int) -> PlainSteps | None:
        """None of one that still runs."""
        code = self._processes[rank].poll()  # before its answer is looked for
        if self._answers[rank].exists():
            return PlainSteps(**json.loads(read_regular(self._answers[rank])))
        return None if code is None else PlainSteps(failed=f"it {how_it_ended(code)}")
