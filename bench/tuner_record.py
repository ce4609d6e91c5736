"""What the tuner's bench has measured, as a record: of every workload in the folder, whenever it was measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.record import PACKAGES, Target, environment, head, target_table, write_folder
from bench.tuner_grid import configuration_of, said

from hasten.facts.machine import read_machine

# Fixed before the first run.
MOST_SECONDS, LEAST_OF_ORACLE, LEAST_WORKLOADS, MOST_APART = 60.0, 0.95, 9, 0.10
STAGES = ("tune", "alone", "product", "finalists", "head_to_head", "realised")
PEERS = (
    "Peers: random search over the same grid, with the tuner's own seconds. pytorch-autotune 2.0.0 is not measured: it "
    "asks for bf16 of a CUDA device alone, so on a processor it has fp16 and compiling to try, and it takes a model "
    "and one batch, not a loader. Lightning's batch size finder is not measured: by the documentation of "
    "2.5.5 it makes the batch larger until memory is out, which is another training with fewer updates, and on a "
    "processor memory that is out ends the process",
)
Table = dict[str, Any]


def write(work: Path, names: Sequence[str], examples: Sequence[str], records: Path) -> Path:
    """names: all workloads there are; those that are whole in the folder are in the record."""
    machine = read_machine()
    surroundings = environment(machine, (*PACKAGES, "scikit-learn", "pillow"))
    measured = {name: read(work / name) for name in names if is_whole(work / name)}
    missing = [name for name in names if name not in measured]
    targets = judged(measured, examples, len(names))
    absent = [f"Not in this record: {', '.join(missing)}"] if missing else []
    claim = f"hasten tune on {len(measured)} workloads beside a grid, and its predictions beside whole runs"
    page = [
        *head(claim, machine, surroundings, absent, "python -m bench.tuner"),
        *target_table(targets),
        "",
        *plans_table(measured),
        "",
        *runs_table(measured),
        "",
        *[f"* {name}: {text}" for name, each in measured.items() for text in remarks(each)],
        "",
        *(f"{peer}." for peer in PEERS),
        "",
        "Ratios are seconds to finish the planned run, as medians over pairs of windows with their 95 % intervals. The "
        "oracle is the fastest of all configurations raced, for three windows each and twelve for the best; the heat "
        "that judges it is new. Whole runs are timed in one process, from loading the job's file to the last weights.",
        "",
    ]
    result = {
        "claim": claim,
        "command": "python -m bench.tuner",
        "targets": [asdict(target) | {"outcome": target.outcome} for target in targets],
        "workloads": {name: without_windows(each) for name, each in measured.items()},
        "missing": missing,
    }
    return write_folder("tuner", records, machine, surroundings, result, samples(measured), "\n".join(page))


def is_whole(folder: Path) -> bool:
    return all((folder / f"{stage}.json").exists() for stage in STAGES)


def read(folder: Path) -> Table:
    return {stage: json.loads((folder / f"{stage}.json").read_text(encoding="utf-8")) for stage in STAGES}


def judged(measured: dict[str, Table], examples: Sequence[str], all_of_them: int) -> list[Target]:
    found = [
        one(f"{name}: seconds of hasten tune", MOST_SECONDS, measured[name]["tune"]["seconds"])
        for name in examples
        if name in measured
    ]
    if len(measured) == all_of_them:  # a part of them decides nothing
        ratios = [each["head_to_head"]["tuned_over_oracle"] for each in measured.values()]
        low, value, high = (sum(ratio[end] >= LEAST_OF_ORACLE for ratio in ratios) for end in ("low", "ratio", "high"))
        name = f"workloads of {all_of_them} whose plan is at least {LEAST_OF_ORACLE} of the oracle's"
        found.append(Target(name=name, bound=LEAST_WORKLOADS, at_most=False, low=low, value=value, high=high))
    for name, each in measured.items():
        for side in ("plain", "planned"):
            if apart := [abs(share) for share in errors(each, side)]:
                label = f"{name}, {side}: share by which the prediction and the whole run lie apart"
                middle = abs(median(errors(each, side)))
                low, high = min(*apart, middle), max(*apart, middle)
                found.append(Target(name=label, bound=MOST_APART, at_most=True, low=low, value=middle, high=high))
    return found


def one(name: str, bound: float, value: float) -> Target:
    """At most, of a number that was measured once."""
    return Target(name=name, bound=bound, at_most=True, low=value, value=value, high=value)


def errors(each: Table, side: str) -> list[float]:
    """Predicted ÷ realised − 1 of each whole run; none where nothing was predicted."""
    total = each["realised"]["predicted"]
    if total is None:
        return []
    predicted = total["baseline_seconds" if side == "plain" else "planned_seconds"] - total["process_seconds"]
    return [predicted / run["seconds"] - 1 for run in each["realised"][side]]


def plans_table(measured: dict[str, Table]) -> list[str]:
    head = ["workload", "tune, s", "plan", "oracle", "control", "plan ÷ oracle", "random ÷ oracle"]
    rows = [
        [
            name,
            f"{each['tune']['seconds']:.0f}",
            said(configuration_of(each["tune"]["choices"])),
            "the same" if each["head_to_head"]["tuned_is_the_oracle"] else _oracle(each),
            *(_ratio(each["head_to_head"][key]) for key in ("control", "tuned_over_oracle", "random_over_oracle")),
        ]
        for name, each in measured.items()
    ]
    return [_row(head), "|---" * len(head) + "|", *map(_row, rows)]


def runs_table(measured: dict[str, Table]) -> list[str]:
    head = ["workload", "plain: predicted, s", "realised, s", "apart", "planned: predicted, s", "realised, s", "apart"]
    rows = [[name, *_run(each, "plain"), *_run(each, "planned")] for name, each in measured.items()]
    return [_row(head), "|---" * len(head) + "|", *map(_row, rows)]


def remarks(each: Table) -> list[str]:
    """What a reader has to know of one workload."""
    duel, alone, product = each["head_to_head"], each["alone"], each["product"]
    said_of_grid = f"{duel['grid']} configurations in the product, of which random search saw {duel['random_saw']}"
    found = [said_of_grid]
    if product["left"]:
        found.append(f"raced alone and not in the product: {', '.join(product['left'])}")
    found += [f"left out: {text}" for text in alone["left"]]
    failed = [raced for raced in (*alone["raced"], *product["raced"]) if raced["failed"]]
    found += [f"failed: {said(configuration_of(raced['configuration']))}: {raced['failed']}" for raced in failed]
    if each["tune"]["compiled"]:
        found.append("the tuner has tried compiling, which is in its seconds and not in the grid")
    if duel["window_is_short"]:
        found.append(f"its planned run is too short for windows of two seconds or fifty steps: {duel['window_steps']}")
    if each["realised"]["predicted"] is None:
        found.append("the tuner found nothing that is faster, and so predicts nothing")
    return found


def without_windows(each: Table) -> Table:
    return {stage: {key: value for key, value in found.items() if key != "windows"} for stage, found in each.items()}


def samples(measured: dict[str, Table]) -> list[Table]:
    return [
        {"workload": name, "stage": stage, **windows}
        for name, each in measured.items()
        for stage, found in each.items()
        for windows in found.get("windows", ())
    ]


def _oracle(each: Table) -> str:
    return said(configuration_of(each["head_to_head"]["oracle"]))


def _ratio(found: Table) -> str:
    return f"{found['ratio']:.3f} ({found['low']:.3f}–{found['high']:.3f})"


def _run(each: Table, side: str) -> tuple[str, str, str]:
    apart = errors(each, side)
    if not apart:
        return "–", "–", "–"
    seconds = [run["seconds"] for run in each["realised"][side]]
    total = each["realised"]["predicted"]
    predicted = total["baseline_seconds" if side == "plain" else "planned_seconds"] - total["process_seconds"]
    spread = f"{median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
    return f"{predicted:.1f}", spread, f"{median(apart):+.1%}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
