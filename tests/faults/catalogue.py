"""The fault catalogue: every fault that a training must stand, with its promise in one line, and which tests show it.

A test is tagged with the row's name: @pytest.mark.fault("worker hangs"). test_catalogue.py holds that each row has one.
"""

from __future__ import annotations

from collections.abc import Mapping

ROWS: Mapping[str, str] = {
    "SIGKILL mid-step": "a resume gives the identical losses; at most one checkpoint interval is lost",
    "SIGTERM, preemption notice": "saved at the next optimizer step, exit 143 inside the grace budget",
    "SIGINT once / twice": "once: saved, exit 130; twice: out at once, nothing corrupt",
    "killed during save, rotation or resume": "the newest verified checkpoint loads; leftovers go at the next start",
    "disk full, EIO": "earlier checkpoints untouched; told; exit 15 after three failures; space is checked first",
    "corrupt or truncated checkpoint": "found before any state changes; the one before it is taken, the bad file named",
    "corrupt sample": "exit 11 with index and path; or replaced deterministically, told, and limited",
    "worker killed": "told at once, with the cause and advice",
    "worker hangs": "its stack, exit 14",
    "/dev/shm too small": "need and room are compared before the start; the message names it; nothing is left",
    "NaN/Inf loss, gradient, norm": "never applied; exit 13 with step, parameter and samples; skips counted",
    "loss spike": "told",
    "out of device memory mid-run": "microbatches halve, the batch stays; refused under batch norm; not mid-update",
    "one rank dies, a collective hangs": "all ranks gone in 30 s, the culprit named, no orphan",
    "uneven inputs": "equal step counts by construction, or refused before step 1",
    "clock jump": "durations come from the monotonic clock alone",
    "output read-only or denied": "exit 15 before data or model load",
    "stale lock": "a dead owner's is taken over, a live one's refused",
    "user exception": "their frame first, sample index, seed; exit 10; the last completed step is saved",
    "unpicklable dataset under spawn": "refused by its attribute before workers start",
    "changed world size on resume": "the same global batches in the same order",
    "changed configuration on resume": "the difference told; safe keys accepted, risky ones need --allow-change",
    "data set empty, smaller than a batch, drop_last → 0": "exit 2 before training, with the three numbers",
    "iterable without a length": "counted in steps alone; asks for max_steps",
    "interrupted source fix": "the file is old or new, and its form is kept",
    "trial crashes, hangs, leaks": "it fails alone, with its class; the best finished plan is returned",
}
