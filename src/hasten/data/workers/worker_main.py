"""What a loader worker process does: it reads one request after the other and sends the answers.

Each worker has pipes of its own, so no worker shares a lock with another. A thread sends the answers, so that the next
one is read while the last one waits in the pipe. A worker ends when it is asked to, or when its training process is
gone. Signals that a terminal or a scheduler sends to all processes of a run do not end it.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.multiprocessing  # teaches multiprocessing to send tensors

from hasten.checkpoint.folders.shared_segments import note_this_process
from hasten.data.loading.data_errors import Failed, failed_start
from hasten.data.order.randomness import derived, reseed
from hasten.data.workers.batch_pickling import PickledReader
from hasten.data.workers.process_stacks import write_stacks_when_asked
from hasten.data.workers.torch_worker_info import set_worker_info

PARENT_SECONDS = 5.0  # between two looks whether the training process is still there
_ENDING = signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What one worker is given when it starts.

    reader: reads a batch and pickles it. dataset: what get_worker_info() shows. users_init: the user's worker_init_fn.
    seed: of all workers, for what a worker_init_fn draws. noted_in: the training process's folder of temporary files,
    where workers are noted that may leave shared memory behind; None where none does.
    """

    reader: PickledReader
    dataset: Any
    users_init: Callable[[int], None] | None
    seed: int
    workers: int
    number: int = 0
    noted_in: Path | None = None


def run_worker(work: Work, requests: Connection, answers: Connection, stacks: Connection) -> None:
    """All that a worker process runs. requests: gives (series, request), or None to end. answers: takes a pickled
    (series, answer). stacks: takes the text of this process's stacks when the training process asks for it."""
    parent = os.getppid()  # before the user's code, which may outlast the training process
    failed = _begin(work, stacks)
    outgoing = SimpleQueue[Any]()
    Thread(target=send_all, args=(outgoing,), name="hasten-answers", daemon=True).start()
    for series, request in _asked(requests, parent):
        answer = work.reader.read(series, request) if failed is None else work.reader.pickled(series, failed)
        outgoing.put((answers, answer))


def send_all(outgoing: SimpleQueue[tuple[Connection, memoryview] | None]) -> None:
    """Send each content through its pipe; None ends it. In a thread, as a full pipe blocks."""
    while (message := outgoing.get()) is not None:
        pipe, content = message
        with suppress(OSError):  # who would receive it has ended
            pipe.send_bytes(content)


def _begin(work: Work, stacks: Connection) -> Failed | None:
    """Make this process a worker; a Failed where the user's worker_init_fn raises."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _ENDING:
        signal.signal(number, lambda *_: None)  # and not SIG_IGN, which the children of a worker would inherit
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if work.noted_in is not None:
        note_this_process(work.noted_in)
    write_stacks_when_asked(stacks)
    torch.set_num_threads(1)
    seed = derived(work.seed, work.number)
    reseed(seed)
    set_worker_info(number=work.number, workers=work.workers, seed=seed, dataset=work.dataset)
    try:
        if work.users_init is not None:
            work.users_init(work.number)
    except Exception as error:
        return failed_start(error, field=work.reader.field, worker=work.number)
    return None


def _asked(requests: Connection, parent: int) -> Iterator[tuple[int, Any]]:
    """Each request of the latest series: those of an epoch that was left early are dropped. parent: the process to end
    with."""
    waiting = deque[tuple[int, Any]]()
    while True:
        while not waiting or requests.poll():
            if not requests.poll(PARENT_SECONDS):
                if os.getppid() != parent:
                    return
                continue
            try:
                message = requests.recv()
            except EOFError:
                return
            if message is None:
                return
            if waiting and waiting[0][0] != message[0]:
                waiting.clear()
            waiting.append(message)
        yield waiting.popleft()
