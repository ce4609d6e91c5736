"""The arms of bench/peers.py: windows of a trainer's steps; and, as a program, one whole run.

python -m bench.peer_arms lightning images --seed 3 --workers 2
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

import numpy as np
import torch
from bench.peer_trainers import TRAINERS
from bench.peer_work import How, work_of
from bench.stepwise import stepwise

from hasten.techniques.setup import ProcessOptions
from hasten.training.setup.process_options import process_options

# What a trainer's user imports. The name "transformers" alone loads nothing: it waits for what is asked of it.
LIBRARIES = {
    "by_hand": (),
    "lightning": ("lightning",),
    "accelerate": ("accelerate",),
    "transformers": ("transformers.trainer",),
}
TUNED = ProcessOptions(flush_denormals=True, keep_freed_memory=True)


def windows(trainer: str, work: str, tuned: bool, workers: int) -> Callable[[int], None]:
    """trainer: in TRAINERS. work: "images", "text" or "rows"."""

    def train(tick: Callable[[], None]) -> None:
        with process_of(tuned=tuned):  # in the thread that trains: denormal numbers are a matter of each thread
            TRAINERS[trainer](work_of(work), How(tuned=tuned, workers=workers, tick=tick))

    return stepwise(train)


def whole(trainer: str, work: str, workers: int) -> dict[str, object]:
    """seconds: until the last evaluation, from where imports and data are there; curve: seconds and result of each
    evaluation; peak_bytes: of memory of this process."""
    curve = list[tuple[float, float]]()
    with process_of(tuned=True):
        # The seconds of hasten are without imports, too, and without what the first optimizer loads (tuner_planned.py).
        for library in (*LIBRARIES[trainer], "torch._dynamo"):
            import_module(library)
        chosen, begin = work_of(work), time.perf_counter()
        how = How(tuned=True, workers=workers, told=lambda result: curve.append((time.perf_counter() - begin, result)))
        TRAINERS[trainer](chosen, how)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": curve[-1][0], "value": curve[-1][1], "curve": curve, "peak_bytes": peak}


@contextmanager
def process_of(*, tuned: bool) -> Iterator[None]:
    """Whose memory and numbers are as plans of hasten have them, where it is tuned; before its first computation."""
    with process_options(TUNED if tuned else ProcessOptions()) as notices:
        for notice in notices:
            print(notice, file=sys.stderr)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peer_arms")
    parser.add_argument("trainer", choices=list(TRAINERS))
    parser.add_argument("work")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(options.seed)
    print(json.dumps(whole(options.trainer, options.work, options.workers)))


if __name__ == "__main__":
    main()
