"""Random generators that people hold beside the global ones, of any kind: where one stands, and how it is put there."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def is_generator(value: Any) -> bool:
    """Whether it has a state: what the system draws has none."""
    return issubclass(type(value), KINDS) and not issubclass(type(value), random.SystemRandom)


def state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate()


def set_state(generator: Any, state: Any) -> None:
    """state: as state_of gave it."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def seed(generator: Any, number: int) -> None:
    """Start it from a number below 2^64."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(number)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(number).state
    else:
        generator.seed(number >> 32 if isinstance(generator, np.random.RandomState) else number)
