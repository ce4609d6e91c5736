"""The arms of bench/peers.py: windows of a trainer's steps; and, as a program, one whole run.

python -m bench.peer_arms lightning images --seed 3 --workers 2
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections.abc import Callable

import numpy as np
import torch
from bench.peer_trainers import TRAINERS
from bench.peer_work import How, work_of
from bench.stepwise import stepwise


def windows(trainer: str, work: str, tuned: bool, workers: int) -> Callable[[int], None]:
    """trainer: in TRAINERS. work: "images", "text" or "rows"."""
    return stepwise(lambda tick: TRAINERS[trainer](work_of(work), How(tuned=tuned, workers=workers, tick=tick)))


def whole(trainer: str, work: str, workers: int) -> dict[str, object]:
    """seconds: until the last evaluation, from where the data is there; curve: seconds and result of each evaluation;
    peak_bytes: of memory of this process."""
    chosen, curve, begin = work_of(work), list[tuple[float, float]](), time.perf_counter()

    def told(result: float) -> None:
        curve.append((time.perf_counter() - begin, result))

    TRAINERS[trainer](chosen, How(tuned=True, workers=workers, told=told))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": curve[-1][0], "value": curve[-1][1], "curve": curve, "peak_bytes": peak}


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
