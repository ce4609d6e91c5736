"""The file names in a run's folder. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

ASKED, PLAN, METRICS, CHECKPOINTS = "asked.json", "plan.toml", "metrics.jsonl", "checkpoints"
BEGAN_WITH, WEIGHTS = "initial_weights.json", "model.safetensors"

_BEGUN = frozenset({PLAN, METRICS, CHECKPOINTS})  # every run that has begun to train has one of these
OF_A_RUN = _BEGUN | {ASKED, BEGAN_WITH}


def has_begun(folder: Path) -> bool:
    """Whether a run in this folder has begun to train."""
    return any((folder / name).exists() for name in _BEGUN)
