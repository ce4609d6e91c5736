"""Measure on a batch of the job what each block of a model saves for backward, and how long its forward takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from hasten.data.loading.device_transfer import map_tensors
from hasten.data.order.randomness import undisturbed
from hasten.techniques.common.model_blocks import BlockCost, blocks_of
from hasten.techniques.common.restored_state import same_state
from hasten.techniques.setup import Setup

Forward = Callable[..., Any]  # (a block's name, its forward, the arguments) -> what the forward returns
Storages = dict[int, torch.UntypedStorage]  # by address


def measure_segments(setup: Setup, forwards: int = 5) -> list[BlockCost]:
    """The cost of each block, in the model's order; seconds are the median of several forwards.

    Runs the job's loss on `setup.sample` on the model's device, under the setup's autocast and without a backward.
    Random states, buffers and the train or eval flags are restored.
    """
    device = next(setup.model.parameters()).device
    blocks = {name: setup.model.get_submodule(name) for name in blocks_of(setup.model)}
    saved, seconds = Counter[str](), list[dict[str, float]]()
    counted = _storages([*setup.model.parameters(), *setup.model.buffers()])

    def measured(name: str, forward: Forward, /, *args: Any, **kwargs: Any) -> Any:
        inside = Storages()

        def note(tensor: torch.Tensor) -> torch.Tensor:
            inside.update(_storages([tensor]))
            return tensor

        started = _now(device)
        with saved_tensors_hooks(note, lambda tensor: tensor):
            output = forward(*args, **kwargs)
        seconds[-1][name] += _now(device) - started
        if len(seconds) == 1:
            counted.update(_storages((args, kwargs, output)))
            new = {address: storage for address, storage in inside.items() if address not in counted}
            saved[name] += sum(storage.nbytes() for storage in new.values())
            counted.update(new)  # which keeps them alive, so that no address is used twice
        return output

    with undisturbed(device), same_state(setup.model), _forward_through(blocks, measured):
        for _ in range(forwards):
            seconds.append(dict.fromkeys(blocks, 0.0))
            _loss(setup)
            counted.clear()
    return [
        BlockCost(name=name, saved_bytes=saved[name], seconds=median(each[name] for each in seconds)) for name in blocks
    ]


def summary(blocks: Sequence[BlockCost], names: Sequence[str]) -> str:
    """The chosen blocks among the measured ones, in sentences with bytes and seconds."""
    chosen = [block for block in blocks if block.name in names]
    freed, saved = (sum(block.saved_bytes for block in each) for each in (chosen, blocks))
    took, whole = (1e3 * sum(block.seconds for block in each) for each in (chosen, blocks))
    return (
        f"activation_checkpointing recomputes {len(chosen)} of {len(blocks)} blocks: {', '.join(names) or 'none'}. "
        f"They save {freed:,} of {saved:,} bytes, and their forward took {took:,.2f} of {whole:,.2f} ms on the host"
    )


def _loss(setup: Setup) -> None:
    autocast, batch = setup.step.autocast, map_tensors(setup.sample, torch.clone)  # a loss may write to its batch
    with torch.enable_grad(), torch.autocast(setup.device.type, dtype=autocast, enabled=autocast is not None):
        setup.job.loss(setup.model, batch)


@contextmanager
def _forward_through(blocks: Mapping[str, nn.Module], through: Forward) -> Iterator[None]:
    """Inside, `through` calls the blocks' forward methods."""
    own = {name: vars(block).get("forward") for name, block in blocks.items()}
    for name, block in blocks.items():
        block.forward = partial(through, name, block.forward)
    try:
        yield
    finally:
        for name, block in blocks.items():
            del block.forward
            if (forward := own[name]) is not None:
                block.forward = forward


def _storages(values: Any) -> Storages:
    """The memory of all tensors in the values."""
    found = Storages()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage
        return tensor

    map_tensors(values, note)
    return found


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        # Wait before reading the clock: queued kernels would be billed to the next block.
        torch.cuda.synchronize(device)
    return time.perf_counter()
