"""Batches on their device: each when it is asked for, or the next ones while the present one computes.

Copying ahead needs a stream of its own, because work on one stream is done in order. What that asks for:

* The stream that computes waits for the copy it is about to use, and for nothing else; the host waits for neither.
* The device's allocator hands freed memory out again in the order of the stream that asked for it. It is told that a
  batch is used on another stream too, so that its memory is not taken for a later copy while it is still read.
* The host's memory stays as it is until its copy is done: pinned memory that is given out again too early is how a
  batch comes to hold half of the next one. So a batch is held, on host and device, until what computes with it is done;
  not of every object in it can the allocator be told.

Sources: torch.Tensor.record_stream; "CUDA semantics" in torch's documentation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hasten.data.loading.batch_loader import Microbatch
from hasten.data.loading.device_transfer import map_tensors


class _Copy(NamedTuple):
    microbatch: Microbatch  # on the device
    on_host: Any
    done: Any  # a CUDA event


def copied(microbatches: Iterator[Microbatch], place: Callable[[Any], Any]) -> Iterator[Microbatch]:
    """The same microbatches, each put on its device when it is asked for."""
    for microbatch in microbatches:
        yield microbatch._replace(batch=place(microbatch.batch))


def copied_ahead(
    microbatches: Iterator[Microbatch], place: Callable[[Any], Any], stream: torch.cuda.Stream, depth: int
) -> Iterator[Microbatch]:
    """The same, with up to `depth` more of them copied, or on their way, while one is used.

    stream: of a CUDA device, for copies alone, and the same one for a whole run: the device's allocator keeps what each
        stream has freed apart.

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
                placed = microbatch._replace(batch=place(microbatch.batch))
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
