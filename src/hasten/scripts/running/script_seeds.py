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


def use_seed(rank: int = 0) -> None:
    """The seed of a script that sets none, whose numbers are then the same at every start on this rank."""
    own = _BETWEEN_RANKS * rank
    torch.manual_seed(own)
    np.random.seed(own % _NUMBERS)
    random.seed(own)


def add_to_seeds(offset: int) -> None:
    """To every seed that is set in the rest of this process, by the script or by use_seed."""
    if not offset:
        return

    def added(original: Callable[..., Any], seed: Any = None, *args: Any, **named: Any) -> Any:
        known = seed if isinstance(seed, int) else 0
        return original((known + offset) % _NUMBERS, *args, **named)

    for owner, name in ((torch, "manual_seed"), (np.random, "seed"), (random, "seed")):
        _FOREVER.enter_context(replaced(owner, name, added))
