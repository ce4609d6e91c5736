"""What it takes to send a value to another process, found out without sending it.

A value travels between processes as a pickle. Tensors do not lie in it: their memory is put into shared memory
(/dev/shm) and only its address travels. So a trial pickle that leaves tensors out shows at little cost whether a value
can be sent at all, and how much shared memory that would take.

What cannot be sent is looked for inside the value, because the error of the pickle names only the last thing it met,
not the way to it.

Source: https://docs.python.org/3/library/pickle.html and https://docs.pytorch.org/docs/stable/multiprocessing.html
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.reduction import ForkingPickler
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.data.loading.data_errors import Failed
from hasten.data.loading.device_transfer import map_tensors
from hasten.errors import OutOfMemory, UserCodeFailed
from hasten.facts.job import describe
from hasten.facts.machine import SHARED_MEMORY

_SHARED_MEMORY_IS_FULL = "unable to allocate shared memory"  # torch's words


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """The size of a value on its way: its tensors in shared memory, everything else in a pipe."""

    shared_bytes: int
    piped_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Unsendable:
    """The smallest part of a value that cannot be sent: the way to it, what it is, and what the pickle says."""

    path: str
    what: str
    reason: str


class _TrialPickler(ForkingPickler):
    """Pickles as a worker's queue does, but only weighs the tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.shared_bytes = 0

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        if obj.requires_grad and not obj.is_leaf:
            raise TypeError("it is a tensor with a gradient's history: detach() it")
        if obj.is_conj() or obj.is_neg():
            raise TypeError("it is a view marked as conjugate or negated, and the mark is lost: resolve_conj() it")
        if obj.layout is torch.strided:
            self.shared_bytes += obj.untyped_storage().nbytes()
        return "tensor"


def parcel(value: Any) -> Parcel:
    """How large the value is when it is sent. Raises whatever pickling it raises."""
    file = io.BytesIO()
    pickler = _TrialPickler(file)
    pickler.dump(value)
    return Parcel(shared_bytes=pickler.shared_bytes, piped_bytes=file.getbuffer().nbytes)


def unsendable_part(value: Any, path: str) -> Unsendable | None:
    """The innermost part of the value that cannot be sent, reached by `path`; None when all of it can be sent."""
    return _innermost(value, path, set())


def _innermost(value: Any, path: str, met: set[int]) -> Unsendable | None:
    if id(value) in met or (reason := _refusal(value)) is None:
        return None
    met.add(id(value))
    for name, part in _parts(value, path):
        found = _innermost(part, name, met)
        if found is not None:
            return found
    return Unsendable(path=path, what=describe(value), reason=reason)


def _refusal(value: Any) -> str | None:
    try:
        parcel(value)
    except Exception as error:  # whatever a class of the user's raises when it is taken apart
        return f"{type(error).__name__}: {error}"
    return None


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What a pickle of the value is made of, each part with the way to it."""
    if isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{place}]", part) for place, part in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{path}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, partial):
        yield from ((f"{path}.func", value.func), (f"{path}.args", value.args), (f"{path}.keywords", value.keywords))
    elif isinstance(value, MethodType):
        yield f"{path}.__self__", value.__self__
    elif not isinstance(value, type):
        yield from _attributes(value, path)


def _attributes(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # it refuses by itself: no part of it is to blame
        return
    states = reduced[2:3] if isinstance(reduced, tuple) else ()
    for state in states:
        for part in state if isinstance(state, tuple) else (state,):  # slots make a second dictionary
            if isinstance(part, dict):
                yield from ((f"{path}.{name}", attribute) for name, attribute in part.items())


def by_value(value: Any) -> Any:
    """The value with its tensors in such a form that they travel in the pipe with everything else, and arrive as
    tensors: of any size, whatever room there is in shared memory. Those inside objects that move themselves to a device
    stay as they are."""
    return map_tensors(value, _ByValue)


class _ByValue:
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> Any:
        tensor = _resolved(self._tensor)
        if type(tensor) is not Tensor or not tensor.is_cpu or tensor.layout is not torch.strided:
            return _as_it_is, (tensor,)
        # As bytes: NumPy does not know every type that torch has. In steps of one: a single value may have any other.
        content = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
        stride = torch.empty_like(tensor, device="meta").stride()  # its own, but where values overlap or have gaps
        return _from_bytes, (content, tensor.dtype, tensor.shape, stride)


def _resolved(tensor: Tensor) -> Tensor:
    """The tensor itself, or one with its values in memory where it only marks those there as conjugate or negated."""
    if tensor.is_conj() or tensor.is_neg():  # only then: classes of their own may lose their type by any call
        return tensor.resolve_conj().resolve_neg()
    return tensor


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _from_bytes(content: np.ndarray, dtype: torch.dtype, shape: torch.Size, stride: tuple[int, ...]) -> Tensor:
    found = torch.from_numpy(content).view(dtype).reshape(shape)
    return found if found.stride() == stride else torch.empty_strided(shape, stride, dtype=dtype).copy_(found)


class Sending:
    """A reader in a worker process, whose answers are pickled there: what cannot be sent is an error with a name.

    made_of_it: what is sent instead of the batch itself. The mark of a conjugate or negated view does not travel with
    its memory, so its values are written out before. Where it lies in an object that is only handed on, a trial with
    the first batch refuses it.
    """

    def __init__(self, reader: Any, field: str, made_of_it: Callable[[Any], Any] | None = None) -> None:
        self.field, self._reader, self._made_of_it, self._tried = field, reader, made_of_it, False

    def read(self, series: int, request: Any) -> memoryview:
        """The pickled answer to a request."""
        answer = self._reader.__getitems__(request)
        try:
            if self._made_of_it is not None:
                answer = self._made_of_it(answer)
            if type(answer) is not Failed:
                answer = map_tensors(answer, _resolved)
                if not self._tried:
                    parcel(answer)
                    self._tried = True
                return self.pickled(series, answer)
        except Exception as error:  # whatever a class of the user's raises when it is taken apart
            answer = self._unsent(answer, error)
        return self.pickled(series, _told(answer))

    def pickled(self, series: int, answer: Any) -> memoryview:
        """series: which run of requests it answers."""
        return ForkingPickler.dumps((series, answer))  # pyright: ignore[reportAttributeAccessIssue]: of Pickler

    def _unsent(self, answer: Any, error: Exception) -> Failed:
        found = unsendable_part(answer, "batch")
        part = "" if found is None else f"{found.path} is {found.what}: "
        return Failed(
            kind=UserCodeFailed,
            what=f"a batch of Job.{self.field} cannot leave its loader worker: {part}{error}",
            where=f"Job.{self.field}",
            fix="return tensors, numbers and text from the data set and collate; or set loader_workers = 0 "
            "(num_workers=0 in a DataLoader)",
        )


def _told(failed: Failed) -> Failed:
    """The same failure, or that shared memory is full where torch says so."""
    if _SHARED_MEMORY_IS_FULL not in failed.what:
        return failed
    return replace(
        failed,
        kind=OutOfMemory,
        what=f"{SHARED_MEMORY}, the shared memory (shm) through which loader workers send, is full: {failed.what}",
        fix=f"use fewer loader workers or a smaller prefetch, or make {SHARED_MEMORY} larger (docker: --shm-size)",
    )
