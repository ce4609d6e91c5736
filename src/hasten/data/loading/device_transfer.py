"""A batch copied to its device: when it is asked for, or ahead, while the present one computes.

Tensors inside tuples, named tuples, lists, dictionaries, dataclasses and objects with a `to` method of their own (a
tokenizer's encoding, a packed sequence, a graph) are found and moved; everything else stays. What does not change is
not rebuilt.

Copying ahead uses a stream of its own; the stream that computes waits for the copy it is about to use. record_stream
keeps a batch's memory on the device, and a batch is held on the host, until what computes with it is done.

Sources: torch.Tensor.record_stream; "CUDA semantics" in torch's documentation; for the layout
https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hasten.data.order.batch_pieces import Microbatch

_NOT_ITSELF = object()  # of a value that does not handle its own tensors


def place(
    batch: Any, device: torch.device, *, memory_format: torch.memory_format | None = None, non_blocking: bool = False
) -> Any:
    """The batch with every tensor on `device`.

    memory_format: the layout on the device of tensors of shape (N, C, H, W) that are floating-point or uint8: images.
        Masks and labels keep theirs. None keeps every layout.
    non_blocking: copy while the host continues. torch waits all the same unless the memory is pinned. The caller must
        not write to the host's tensors before the copy is done.
    """

    def move(tensor: Tensor) -> Tensor:
        if not (on_cpu and tensor.is_cpu):
            tensor = tensor.to(device, non_blocking=non_blocking)
        is_image = tensor.dim() == 4 and (tensor.is_floating_point() or tensor.dtype == torch.uint8)
        if memory_format is not None and is_image:
            # After the copy, so that the host sends its memory unchanged and the device rearranges it.
            tensor = tensor.contiguous(memory_format=memory_format)
        return tensor

    def move_other(value: Any) -> Any:
        if not callable(getattr(value, "to", None)):
            return _NOT_ITSELF
        return value.to(device, non_blocking=True) if non_blocking else value.to(device)

    on_cpu = device.type == "cpu"
    return _mapped(batch, move, move_other)


def map_tensors(batch: Any, function: Callable[[Tensor], Any]) -> Any:
    """The batch with a function's answer in place of every tensor; objects with a `to` of their own are passed by."""
    return _mapped(batch, function, lambda other: other if callable(getattr(other, "to", None)) else _NOT_ITSELF)


def pinned(batch: Any) -> Any:
    """The batch with every tensor in page-locked memory; objects with a `pin_memory` of their own do it themselves, as
    torch's DataLoader has it."""

    def pin_other(value: Any) -> Any:
        return value.pin_memory() if callable(getattr(value, "pin_memory", None)) else _NOT_ITSELF

    return _mapped(batch, torch.Tensor.pin_memory, pin_other)


class _Copy(NamedTuple):
    microbatch: Microbatch  # on the device
    on_host: Any
    done: Any  # a CUDA event


def copied(microbatches: Iterator[Microbatch], to_device: Callable[[Any], Any]) -> Iterator[Microbatch]:
    """The same microbatches, each put on its device when it is asked for."""
    for microbatch in microbatches:
        yield microbatch._replace(batch=to_device(microbatch.batch))


def copied_ahead(
    microbatches: Iterator[Microbatch], to_device: Callable[[Any], Any], stream: torch.cuda.Stream, depth: int
) -> Iterator[Microbatch]:
    """The same, with up to `depth` more of them copied, or on their way, while one is used.

    stream: of a CUDA device, for copies alone, and the same one for a whole run: the device's allocator separates
        what each stream has freed.

    A batch is ready for the stream that is current when it is handed out. An error of the loader comes where it would
    have come without copying ahead: after the batches before it.
    """
    device = stream.device
    waiting, in_use = deque[_Copy](), deque[tuple[_Copy, Any]]()  # with the event after what computes with it
    failed: Exception | None = None
    while True:
        while failed is None and len(waiting) <= depth:
            try:
                microbatch = next(microbatches, None)
            except Exception as error:
                failed = error
                break
            if microbatch is None:
                break
            with torch.cuda.stream(stream):
                placed = microbatch._replace(batch=to_device(microbatch.batch))
                waiting.append(_Copy(placed, microbatch.batch, stream.record_event()))
        if not waiting:
            if failed is not None:
                raise failed
            return
        copy = waiting.popleft()
        while in_use and in_use[0][1].query():
            in_use.popleft()
        yield _handed_over(copy, torch.cuda.current_stream(device))
        in_use.append((copy, torch.cuda.current_stream(device).record_event()))


def _handed_over(copy: _Copy, stream: torch.cuda.Stream) -> Microbatch:
    stream.wait_event(copy.done)

    def used_on_it(tensor: Tensor) -> Tensor:
        if tensor.is_cuda:
            tensor.record_stream(stream)
        return tensor

    map_tensors(copy.microbatch.batch, used_on_it)
    return copy.microbatch


def _mapped(value: Any, move: Callable[[Tensor], Any], move_other: Callable[[Any], Any]) -> Any:
    if isinstance(value, Tensor):
        return move(value)
    if isinstance(value, str | bytes | int | float | type | None):
        return value
    if (moved := move_other(value)) is not _NOT_ITSELF:  # before tuples: a PackedSequence is both
        return moved
    if isinstance(value, tuple | list):
        items = [_mapped(item, move, move_other) for item in value]
        if all(map(is_, items, value)):
            return value
        return value._make(items) if hasattr(value, "_make") else type(value)(items)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, MutableMapping):
        changed = _changed(value, move, move_other)
        clone = copy.copy(value) if changed else value
        for key, item in changed.items():  # some forbid update()
            clone[key] = item
        return clone
    if dataclasses.is_dataclass(value):
        before = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = _changed(before, move, move_other)
        clone = copy.copy(value) if changed else value
        for name, item in changed.items():
            object.__setattr__(clone, name, item)  # as a frozen one sets its own fields
        return clone
    return value


def _changed(
    items: Mapping[Any, Any], move: Callable[[Tensor], Any], move_other: Callable[[Any], Any]
) -> dict[Any, Any]:
    """The items that are other ones afterwards."""
    mapped = {key: _mapped(item, move, move_other) for key, item in items.items()}
    return {key: item for key, item in mapped.items() if item is not items[key]}
