"""The folder of one run: what was planned, where it ran, what was measured, and the weights.

plan.toml · environment.json · metrics.jsonl · model.safetensors
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from hasten.checkpoint.files import check_writable, make_folder, write_atomically
from hasten.errors import Misconfigured
from hasten.facts.machine import Machine
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_to_toml
from hasten.training.logs import JsonLines


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
            raise Misconfigured("the run folder is not empty", where=str(path), fix="name another one with --run-dir")
        check_writable(path)
        return cls(path)

    def describe(self, plan: Plan, machine: Machine) -> None:
        write_atomically(self.path / "plan.toml", plan_to_toml(plan).encode())
        text = json.dumps(environment(machine), indent=2) + "\n"
        write_atomically(self.path / "environment.json", text.encode())

    def metrics(self) -> JsonLines:
        return JsonLines(self.path / "metrics.jsonl")

    def save_weights(self, weights: Mapping[str, Tensor]) -> Path:
        path = self.path / "model.safetensors"
        write_atomically(path, safetensors.torch.save(dict(weights), metadata={"format": "pt"}))
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
