"""The folder of one run: what was planned, where it ran, what was measured, and the weights.

plan.toml · environment.json · metrics.jsonl · checkpoints/ · model.safetensors
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from hasten.checkpoint import run_lock
from hasten.checkpoint.files import (
    check_writable,
    cut_file,
    is_leftover,
    make_folder,
    names_in,
    remove_file,
    write_atomically,
)
from hasten.checkpoint.store import Store
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.events import Noticed
from hasten.facts.machine import Machine
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_to_toml, read_plan
from hasten.facts.saving import Saving
from hasten.facts.sizes import byte_size
from hasten.training.given_weights import NAME as _BEGAN_WITH
from hasten.training.logs import JsonLines

_PLAN, _METRICS, _CHECKPOINTS = "plan.toml", "metrics.jsonl", "checkpoints"


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make the folder and prove that it can be written to, before anything slow begins.

        Raises StorageFailed when it cannot, Misconfigured when a run is in it already: no run is ever overwritten.
        """
        make_folder(path)
        if any(path.iterdir()):
            fix = "go on with the run that is in it: --resume; or name another one with --run-dir"
            raise Misconfigured("the run folder is not empty", where=str(path), fix=fix)
        check_writable(path)
        return cls(path)

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """The folder of a run that goes on, or that ended before it had begun: then it is empty, or not even there, and
        a scheduler that begins a job again with the command of the first time finds it so.

        Raises Misconfigured when something else is in it, StorageFailed when it cannot be written to.
        """
        make_folder(path)
        names = [each for each in names_in(path) if each != run_lock.NAME and not is_leftover(each)]
        if names and not {_PLAN, _METRICS, _CHECKPOINTS, _BEGAN_WITH} & {*names}:
            what = f"there is no run in it, but other things are, such as {names[0]}"
            raise Misconfigured(what, where=str(path), fix="name the folder of a run with --run-dir")
        check_writable(path)
        return cls(path)

    def clean(self) -> None:
        """Remove the files that a killed process has left half written. Raises StorageFailed."""
        for name in filter(is_leftover, names_in(self.path)):
            remove_file(self.path / name)

    @property
    def store(self) -> Store:
        return Store(self.path / _CHECKPOINTS)

    def plan(self) -> Plan | None:
        """That the run began with; None for one that ended before it was written."""
        path = self.path / _PLAN
        return read_plan(path) if path.exists() else None

    def check_space(self, weights_bytes: int, saving: Saving) -> None:
        """Raises StorageFailed when not even the weights of the checkpoints that are to stay would fit on the disk.
        What an optimizer keeps, usually one to two times as much, is not known yet."""
        needed = weights_bytes * (saving.keep_last + 1)  # a new one is whole before an old one goes
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise StorageFailed(
                f"{byte_size(free)} are free on this disk, and the weights of {saving.keep_last + 1} checkpoints alone "
                f"take {byte_size(needed)}",
                where=str(self.path),
                fix="free space on it, or choose a folder on another disk with --run-dir",
            )

    def describe(self, plan: Plan, machine: Machine) -> None:
        write_atomically(self.path / _PLAN, plan_to_toml(plan).encode())
        text = json.dumps(environment(machine), indent=2) + "\n"
        write_atomically(self.path / "environment.json", text.encode())

    def metrics(self, length: int = 0) -> JsonLines:
        """The log, brought back to the length in bytes that a checkpoint knows. Raises StorageFailed."""
        path = self.path / _METRICS
        missing = cut_file(path, length)
        log = JsonLines(path)
        if missing:
            text = f"{missing:,} bytes that were logged before the checkpoint are missing in {path}"
            log.log(Noticed(text=text))
        return log

    def save_weights(self, weights: Mapping[str, Tensor]) -> Path:
        path = self.path / "model.safetensors"
        tensors = {name: each for name, each in weights.items() if isinstance(each, Tensor)}  # the format has no other
        write_atomically(path, safetensors.torch.save(tensors, metadata={"format": "pt"}))
        return path


def environment(machine: Machine) -> dict[str, Any]:
    """What a result may depend on, by allow-list: no host name, no path, no environment variable."""
    facts = asdict(machine) | {"processor_features": sorted(machine.processor_features)}
    packages = ("hasten", "torch", "numpy", "torchmetrics")
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "machine": facts,
        "packages": {name: version(name) for name in packages},
    }
