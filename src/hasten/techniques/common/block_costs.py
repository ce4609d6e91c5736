"""Measure on a batch of the job what each block of a model saves for backward, and how long its forward takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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


def measure_segments(setup: Setup, forwards: int = 5) -> list[BlockCost]:
    """The cost of each block, in the model's order; seconds are the median of several forwards.

    Runs the job's loss on `setup.sample` on the model's device, under the setup's autocast and without a backward.
    Random states, buffers and the train or eval flags are restored.
    """
    device = next(setup.model.parameters()).device
    blocks = {name: setup.model.get_submodule(name) for name in blocks_of(setup.model)}
    sample = setup.sample
    with undisturbed(device), same_state(setup.model):
        saved = _saved_bytes(setup, sample, blocks)
        seconds = [_forward_seconds(setup, sample, blocks, device) for _ in range(forwards)]
    return [
        BlockCost(name=name, saved_bytes=saved[name], seconds=median(each[name] for each in seconds)) for name in blocks
    ]


def _saved_bytes(setup: Setup, sample: Any, blocks: Mapping[str, nn.Module]) -> Counter[str]:
    counted = _storages([*setup.model.parameters(), *setup.model.buffers()])
    saved = dict[str, dict[int, torch.UntypedStorage]]()
    hooks: list[saved_tensors_hooks] = []

    def enter(name: str, crossing: Any) -> None:
        storages = saved.setdefault(name, {})

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storages.update(_storages([tensor]))
            return tensor

        counted.update(_storages(crossing))
        hooks.append(saved_tensors_hooks(keep, lambda tensor: tensor))
        hooks[-1].__enter__()

    def leave(name: str, crossing: Any) -> None:
        hooks.pop().__exit__(None, None, None)
        counted.update(_storages(crossing))

    with _watched(blocks, enter, leave):
        _forward(setup, sample)
    total = Counter[str]()
    for name, storages in saved.items():
        # Storages stay alive until here, so no address is used twice.
        new = {address: storage for address, storage in storages.items() if address not in counted}
        total[name] = sum(storage.nbytes() for storage in new.values())
        counted.update(new)
    return total


def _forward_seconds(setup: Setup, sample: Any, blocks: Mapping[str, nn.Module], device: torch.device) -> Counter[str]:
    spent, started = Counter[str](), dict[str, float]()

    def enter(name: str, crossing: Any) -> None:
        started[name] = _now(device)

    def leave(name: str, crossing: Any) -> None:
        spent[name] += _now(device) - started[name]  # pyright: ignore[reportArgumentType]

    with _watched(blocks, enter, leave):
        _forward(setup, sample)
    return spent


def _forward(setup: Setup, sample: Any) -> None:
    autocast, batch = setup.step.autocast, map_tensors(sample, torch.clone)  # a loss may write to its batch
    with torch.enable_grad(), torch.autocast(setup.device.type, dtype=autocast, enabled=autocast is not None):
        setup.job.loss(setup.model, batch)


@contextmanager
def _watched(
    blocks: Mapping[str, nn.Module], enter: Callable[[str, Any], None], leave: Callable[[str, Any], None]
) -> Iterator[None]:
    """Call `enter` with a block's name and inputs before each of its forwards, and `leave` with its output after."""
    with ExitStack() as hooks:
        for name, block in blocks.items():
            before = block.register_forward_pre_hook(
                lambda _, args, kwargs, name=name: enter(name, (args, kwargs)), with_kwargs=True
            )
            after = block.register_forward_hook(
                lambda _, args, output, name=name: leave(name, output), always_call=True
            )
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        yield


def _storages(values: Any) -> dict[int, torch.UntypedStorage]:
    """The memory of all tensors in the values, by its address."""
    found = dict[int, torch.UntypedStorage]()

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
