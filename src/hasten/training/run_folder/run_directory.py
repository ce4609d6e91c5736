"""The folder of one run: its request, plan, environment, log, checkpoints and final weights.

asked.json · plan.toml · environment.json · metrics.jsonl · checkpoints/ · model.safetensors
and initial_weights.json, where the run began with the weights of a file
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasten.checkpoint.files import cut_file, is_leftover, names_in, remove_file, write_atomically
from hasten.checkpoint.store import Store
from hasten.errors import StorageFailed
from hasten.facts.formatting import byte_size
from hasten.facts.machine import Machine
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_to_toml, read_plan
from hasten.facts.saving import Saving
from hasten.training.reporting.logs import JsonLines
from hasten.training.run_folder.folder_names import CHECKPOINTS, METRICS, PLAN, WEIGHTS
from hasten.training.run_folder.run_request import RunRequest, asked_in
from hasten.training.weights.tensor_file import as_file


class RunFolder:
    """path: as it was given, for messages, and for what is done before the job's code runs. home: the same, absolute,
    as the job's code may change the working directory."""

    def __init__(self, path: Path) -> None:
        self.path, self.home = path, path.absolute()

    def clean(self) -> None:
        """Remove unfinished files of a killed process. Raises StorageFailed."""
        for name in filter(is_leftover, names_in(self.path)):
            remove_file(self.path / name)

    @property
    def store(self) -> Store:
        return Store(self.path / CHECKPOINTS)

    def plan(self) -> Plan | None:
        """That the run began with; None for a run that ended before it was written."""
        path = self.path / PLAN
        return read_plan(path) if path.exists() else None

    def asked(self) -> RunRequest:
        """How the run was requested; by default where that is not recorded. Raises StorageFailed as asked_in does."""
        return asked_in(self.path) or RunRequest()

    def check_space(self, weights_bytes: int, saving: Saving) -> None:
        """Raises StorageFailed when not even the weights of the coming checkpoints would fit on the disk.

        The optimizer's state, usually one to two times as much, is not known yet.
        """
        # A new checkpoint is verified before an old one is removed.
        many = max(saving.keep_last + 1 - len(names_in(self.home / CHECKPOINTS)), 1)
        needed, free = weights_bytes * many, shutil.disk_usage(self.home).free
        if free < needed:
            checkpoints = "checkpoint" if many == 1 else "checkpoints"
            what = (
                f"{byte_size(free)} are free on this disk, and the weights of {many} more {checkpoints} alone take "
                f"{byte_size(needed)}"
            )
            fix = "free space on it, or choose a folder on another disk with --run-dir"
            raise StorageFailed(what, where=str(self.path), fix=fix)

    def describe(self, plan: Plan, machine: Machine) -> None:
        write_atomically(self.home / PLAN, plan_to_toml(plan).encode())
        text = json.dumps(environment(machine), indent=2) + "\n"
        write_atomically(self.home / "environment.json", text.encode())

    def metrics(self, length: int = 0) -> JsonLines:
        """The log, cut to the length in bytes that a checkpoint records. Raises StorageFailed."""
        cut_file(self.home / METRICS, length)
        return JsonLines(self.home / METRICS)

    def save_weights(self, weights: Mapping[str, Tensor]) -> Path:
        write_atomically(self.home / WEIGHTS, as_file(weights))
        return self.path / WEIGHTS


def environment(machine: Machine) -> dict[str, Any]:
    """What a result may depend on, by an allow-list: no host name, no path, no environment variable."""
    facts = asdict(machine) | {"processor_features": sorted(machine.processor_features)}
    packages = ("hasten", "torch", "numpy", "torchmetrics")
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "machine": facts,
        "packages": {name: version(name) for name in packages},
    }
