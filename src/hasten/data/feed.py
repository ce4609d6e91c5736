"""torch's DataLoader, asked for microbatches by request; without workers or pinned memory, the reader itself.

The DataLoader's own notions of order, batch size and collation are switched off: a reader answers each request with a
ready batch (see reading.py). What stays is what it is good at: worker processes, prefetching and pinned memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from hasten.data.failures import Failed
from hasten.data.options import LoaderOptions
from hasten.data.reading import read_here
from hasten.data.sources import Source
from hasten.errors import PlanError


class Feed:
    """Answers requests in their order. `notices` says which of the options have no use here."""

    def __init__(self, reader: Any, source: Source, options: LoaderOptions) -> None:
        _check_options(options)
        workers, pin_memory, self.notices = _usable(source, options)
        self._reader, self._closed = reader, False
        self._requests = _Requests()
        self._loader: DataLoader[Any] | None = None
        if workers == 0 and not pin_memory:
            return  # the reader answers by itself: a DataLoader would only stand between
        self._loader = DataLoader(
            reader,
            batch_sampler=self._requests,
            collate_fn=_as_read,
            num_workers=workers,
            prefetch_factor=options.prefetch_factor if workers else None,
            persistent_workers=options.persistent_workers and workers > 0,
            pin_memory=pin_memory,
            worker_init_fn=source.worker_init,
            # Without one of its own, it would draw a number from the training process's generator in every epoch.
            generator=torch.Generator(),
        )

    def answers(self, requests: Iterable[Any]) -> Iterator[Any]:
        """What the reader answers to each request; raises what a Failed stands for.

        Persistent workers serve one such iterator at a time.
        """
        if self._closed:
            raise RuntimeError("the loader was closed")
        self._requests.pending = requests
        answers = read_here(self._reader, requests) if self._loader is None else iter(self._loader)
        try:
            for answer in answers:
                if type(answer) is Failed:
                    raise answer.error()
                yield answer
        finally:
            # End the workers here. Kept alive by the traceback of an error, they would be ended by the garbage
            # collector, which first closes the queues that tell them to: five seconds for each worker.
            del answers

    def close(self) -> None:
        self._closed = True
        self._loader = None  # the last reference to persistent workers: they end


class _Requests:
    """What the DataLoader takes for a batch sampler; it asks for an iterator at the start of every epoch."""

    pending: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pending)


def _as_read(batch: Any) -> Any:
    return batch


def _check_options(options: LoaderOptions) -> None:
    if options.workers == 0 and (options.prefetch_factor is not None or options.persistent_workers):
        what = "prefetch_factor" if options.prefetch_factor is not None else "persistent_workers"
        raise PlanError(f"{what} is set, and there are 0 loader workers", fix=f"set workers, or leave {what} out")


def _usable(source: Source, options: LoaderOptions) -> tuple[int, bool, tuple[str, ...]]:
    """Workers, pin_memory, and why one of them is not as the options have it."""
    if source.on_accelerator:
        if options.workers or options.pin_memory:
            why = f"{source.field} is on the device already: loader workers and pinned memory are not used for it"
            return 0, False, (why,)
        return 0, False, ()
    if options.pin_memory and not torch.accelerator.is_available():
        return options.workers, False, ("pin_memory is not used: there is no accelerator to copy to",)
    return options.workers, options.pin_memory, ()
