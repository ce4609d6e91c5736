"""Whether a value can be sent to another process, how large it is on the way, and what of it cannot be sent.

A value is sent as a pickle; the memory of its tensors is put into shared memory (/dev/shm), and its address is sent.
So a trial pickle without tensors shows at little cost whether a value can be sent, and how much shared memory it takes.

Source: https://docs.python.org/3/library/pickle.html and https://docs.pytorch.org/docs/stable/multiprocessing.html
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from hasten.data.loading.data_errors import Failed
from hasten.data.loading.device_transfer import map_tensors
from hasten.errors import OutOfMemory, UserCodeFailed
from hasten.facts.job import describe
from hasten.facts.machine import SHARED_MEMORY

_SHARED_MEMORY_IS_FULL = "unable to allocate shared memory"  # torch's words


@dataclass(frozen=True, kw_only=True, slots=True)
class Unsendable:
    """The smallest part of a value that cannot be sent: the way to it, what it is, and the error of the pickle."""

    path: str
    what: str
    reason: str


class _TrialPickler(ForkingPickler):
    """Pickles as a worker does, but only counts the bytes of tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.shared_bytes = 0

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        if obj.requires_grad and not obj.is_leaf:
            raise TypeError("it is a tensor with a gradient's history: detach() it")
        if obj.layout is torch.strided:
            self.shared_bytes += obj.untyped_storage().nbytes()
        return "tensor"


def shared_bytes_of(value: Any) -> int:
    """Bytes of shared memory that the tensors of a value take when it is sent. Raises what pickling it raises."""
    pickler = _TrialPickler(io.BytesIO())
    pickler.dump(value)
    return pickler.shared_bytes


def unsendable_part(value: Any, path: str, met: set[int] | None = None) -> Unsendable | None:
    """The innermost part of the value that cannot be sent, reached by `path`; None when all of it can be sent. met: the
    ids of what need not be searched again."""
    met = set() if met is None else met
    try:
        shared_bytes_of(value)
        return None
    except Exception as error:  # whatever a class of the user's raises when it is pickled
        reason = f"{type(error).__name__}: {error}"
    met.add(id(value))
    parts = ((part, name) for name, part in _parts(value, path) if id(part) not in met)
    inner = next((found for part, name in parts if (found := unsendable_part(part, name, met)) is not None), None)
    return inner or Unsendable(path=path, what=describe(value), reason=reason)


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The parts of a value that its pickle holds, each with the way to it."""
    if isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{place}]", part) for place, part in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{path}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, partial):
        yield from ((f"{path}.{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, MethodType):
        yield f"{path}.__self__", value.__self__
    elif not isinstance(value, type):
        yield from ((f"{path}.{name}", part) for name, part in getattr(value, "__dict__", {}).items())


class PickledReader:
    """A reader in a worker process, whose answers are pickled there: what cannot be sent is an error with a name. torch
    sends the memory of a tensor without its mark as a conjugate or negated view, so the values of such views are
    written out. The first batch is tried before it is sent."""

    def __init__(self, reader: Any, field: str) -> None:
        self.field, self._reader, self._tried = field, reader, False

    def read(self, series: int, request: Any) -> memoryview:
        """The pickled answer to a request."""
        answer = self._reader.__getitems__(request)
        try:
            if type(answer) is not Failed:
                answer = map_tensors(answer, _resolved)
                if not self._tried:
                    shared_bytes_of(answer)
                    self._tried = True
                return self.pickled(series, answer)
        except Exception as error:  # whatever a class of the user's raises when it is pickled
            answer = self._unsent(answer, error)
        if _SHARED_MEMORY_IS_FULL in answer.error.what:
            what = f"{SHARED_MEMORY}, the shared memory (shm) through which loader workers send, is full"
            fix = f"use fewer loader workers or a smaller prefetch, or make {SHARED_MEMORY} larger (docker: --shm-size)"
            where = f"Job.{self.field}"
            answer = Failed(error=OutOfMemory(f"{what}: {answer.error.what}", where=where, fix=fix))
        return self.pickled(series, answer)

    def pickled(self, series: int, answer: Any) -> memoryview:
        """series: the number of the epoch, or other run of requests, that it answers."""
        return ForkingPickler.dumps((series, answer))  # pyright: ignore[reportAttributeAccessIssue]: of Pickler

    def _unsent(self, answer: Any, error: Exception) -> Failed:
        found = unsendable_part(answer, "batch")
        part = "" if found is None else f"{found.path} is {found.what}: "
        what = f"a batch of Job.{self.field} cannot be sent from its loader worker: {part}{error}"
        fix = (
            "return tensors, numbers and text from the data set and collate; or set loader_workers = 0 (num_workers=0)"
        )
        return Failed(error=UserCodeFailed(what, where=f"Job.{self.field}", fix=fix))


def _resolved(tensor: Tensor) -> Tensor:
    if tensor.is_conj() or tensor.is_neg():  # only then: classes of their own may lose their type by any call
        return tensor.resolve_conj().resolve_neg()
    return tensor
