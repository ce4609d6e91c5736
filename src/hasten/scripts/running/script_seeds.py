"""Runs a script from another seed: what it seeds itself, and what it does not seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from hasten.scripts.patching import replaced

_NUMBERS = 2**32  # of NumPy's seeds
_BETWEEN_RANKS = 1009  # of one seed, so that ranks of an unseeded script draw other numbers
_FOREVER = ExitStack()


def use_seed(offset: int, rank: int = 0) -> None:
    """For the rest of this process. offset: added to every seed that the script sets, and the seed of a script that
    sets none, whose numbers are then the same in every process of this rank."""
    own = (offset + _BETWEEN_RANKS * rank) % _NUMBERS
    torch.manual_seed(own)
    np.random.seed(own)
    random.seed(own)
    if not offset:
        return

    def added(original: Callable[..., Any], seed: Any = None, *args: Any, **named: Any) -> Any:
        known = seed if isinstance(seed, int) else 0
        return original((known + offset) % _NUMBERS, *args, **named)

    for owner, name in ((torch, "manual_seed"), (np.random, "seed"), (random, "seed")):
        _FOREVER.enter_context(replaced(owner, name, added))
