"""What lies in the folder of a run, by its names. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

ASKED, PLAN, METRICS, CHECKPOINTS = "asked.json", "plan.toml", "metrics.jsonl", "checkpoints"
BEGAN_WITH = "initial_weights.json"

_BEGUN = frozenset({PLAN, METRICS, CHECKPOINTS})  # one of these is in the folder of every run that has come to train
OF_A_RUN = _BEGUN | {ASKED, BEGAN_WITH}


def has_begun(folder: Path) -> bool:
    """Whether a run in this folder has come to train."""
    return any((folder / name).exists() for name in _BEGUN)
