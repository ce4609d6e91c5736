"""Random numbers that belong to a sample, not to the process that happens to read it.

Before a sample is read, the three generators that data sets draw from (torch's default one on the CPU, NumPy's global
one and Python's) are seeded with a number made of (seed, epoch, index) and nothing else.

The number comes from splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014),
which maps 64 bits to 64 bits one to one: two indices of one epoch never get the same number. torch and NumPy keep only
32 bits of a seed; they are given different halves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

_MASK = (1 << 64) - 1

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)

Whole = TypeVar("Whole", int, np.ndarray)


def mixed(state: Whole) -> Whole:
    """One step of splitmix64: a whole number below 2^64, or a uint64 array of them, to as many others, one to one."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def derived(seed: int, *parts: int) -> int:
    """A number below 2^64 for a purpose, named by whole numbers (negative ones too) in their order."""
    state = mixed(seed & _MASK)
    for part in parts:
        state = mixed(state ^ (part & _MASK))
    return state


def sample_seed(seed: int, epoch: int, index: Whole) -> Whole:
    """The number below 2^64 that all random draws of one sample follow from; of many at once for a uint64 array."""
    return mixed(derived(seed, epoch) ^ index)


def reseed(number: int) -> None:
    """Start torch's default CPU generator, NumPy's global one and Python's from a number below 2^64."""
    # torch.manual_seed would also walk over every accelerator, which costs more than reading a small sample.
    torch.default_generator.manual_seed(number)
    np.random.seed(number >> 32)
    random.seed(number)


def seed_everything(seed: int) -> None:
    """Seed torch's generators of every device, NumPy's global one and Python's. seed: from 0 to 2^63 - 1."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def seed_step(seed: int, rank: int, step: int, device: torch.device) -> None:
    """Seed torch's default generators, of the CPU and of the device, for one optimizer step of one rank: what it draws
    follows from these numbers alone, however the run came to it."""
    number = derived(seed, rank, step)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)


@contextmanager
def undisturbed(*devices: torch.device) -> Iterator[None]:
    """Leave every global generator as it was found, whatever is drawn or seeded inside. devices: the accelerators that
    are drawn on besides the host; a CPU among them changes nothing."""
    state = random_state(*devices)
    try:
        yield
    finally:
        set_random_state(state, *devices)


def random_state(*devices: torch.device) -> dict[str, Any]:
    """The states of the global generators that training code may draw from: torch's, NumPy's and Python's."""
    return {
        "torch": torch.default_generator.get_state(),
        "devices": [torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"],
        "numpy": np.random.get_state(legacy=False),
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any], *devices: torch.device) -> None:
    """state: of random_state, for the same devices."""
    torch.default_generator.set_state(state["torch"])
    accelerators = [device for device in devices if device.type == "cuda"]
    for device, saved in zip(accelerators, state["devices"], strict=True):
        torch.cuda.set_rng_state(saved, device)
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def is_generator(value: Any) -> bool:
    """Whether it is a random generator with a state, beside the global ones. SystemRandom has none."""
    return issubclass(type(value), _GENERATORS) and not issubclass(type(value), random.SystemRandom)


def generator_state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate()


def set_generator_state(generator: Any, state: Any) -> None:
    """state: of generator_state."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def seed_generator(generator: Any, number: int) -> None:
    """number: below 2^64."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(number)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(number).state
    else:
        generator.seed(number >> 32)  # NumPy's RandomState takes 32 bits
