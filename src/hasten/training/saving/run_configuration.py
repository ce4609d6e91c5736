"""The configuration of a run, as a checkpoint saves it."""

from __future__ import annotations

import platform
from typing import Any

import torch

from hasten.training.run import Run
from hasten.training.run_folder.config_differences import DATA, code_digest
from hasten.training.setup.configuration import FIELDS, plain
from hasten.training.setup.settings import (
    module_settings,
    optimizer_settings,
    schedule_length,
    schedule_settings,
)


def configuration_of(run: Run) -> dict[str, Any]:
    """Of a run as it was built, before a step or a saved state has moved its rates: by key, as JSON can hold it.
    "plan.<technique>" has the choice's value and what it preserves."""
    job, fingerprint = run.job, run.built.fingerprint
    found: dict[str, Any] = {name: plain(getattr(job, name)) for name in FIELDS}
    found["batch_size"] = run.built.batch_size
    found["samples"] = fingerprint.samples
    found["data"] = {name: f"{DATA} {digest}" for name, digest in run.built.data.items()}
    found["parameters"], found["shapes"] = fingerprint.parameters, f"shapes {fingerprint.shapes}"
    found["model"] = module_settings(run.model)
    found["code"] = f"code {code_digest(job)}"
    for number, optimizer in enumerate(run.optimizers):
        key = f"optimizer.{number}" if number else "optimizer"
        found[key] = type(optimizer).__name__
        found[f"{key}.groups"] = [len(group["params"]) for group in optimizer.param_groups]
        found |= {f"{key}.{name}": value for name, value in optimizer_settings(optimizer).items()}
    found["schedule"] = run.schedule.kinds
    if run.schedule.kinds:
        found["schedule.length"] = schedule_length(run.schedule)
        found["schedule.settings"] = schedule_settings(run.schedule)
    for item in run.built.plan.choices:
        choice = item.choice
        preserves = choice.preserves.name if choice.preserves is not None else None
        found[f"plan.{choice.technique}"] = {
            "value": plain(choice.value),
            "options": {name: plain(each) for name, each in choice.options.items()},
            "preserves": preserves,
        }
    return found | {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": run.device.type,
        "threads": torch.get_num_threads(),
    }
