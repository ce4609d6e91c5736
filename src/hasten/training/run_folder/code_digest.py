"""A digest of the source files that define a job's functions, which is compared on resume."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

from hasten.data.cache.cache_key import text_of_module
from hasten.facts.job import Job, Schedule
from hasten.training.setup.settings import is_library


def code_digest(job: Job) -> str:
    """16 hexadecimal digits. Code of torch and hasten, and modules that the files import, are not part of it."""
    schedule = job.schedule.build if isinstance(job.schedule, Schedule) else job.schedule
    given = [job.model, job.loss, job.eval_loss, job.optimizer, job.parameters, job.collate, schedule]
    modules = {_module_of(each) for each in given if each is not None} - {""}
    texts = sorted(f"{name} {text_of_module(name)}" for name in modules)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _module_of(function: Any) -> str:
    """Empty for torch's and hasten's."""
    while isinstance(function, partial):
        function = function.func
    owner = function if hasattr(function, "__qualname__") else type(function)
    return "" if is_library(owner) else str(owner.__module__)
