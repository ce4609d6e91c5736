"""Plans on disk: the text is facts.plan_file's, the writing is this room's."""

from __future__ import annotations

import os
from pathlib import Path

from hasten.checkpoint.files import write_atomically
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_to_toml


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the plan as TOML; hasten.read_plan reads it again. A plan that was there is replaced whole.

    Raises PlanError for what no plan file may hold, StorageFailed when it cannot be written.
    """
    write_atomically(Path(path), plan_to_toml(plan).encode())
