"""How a sample that could not be read becomes an error that names it, even when a worker process read it.

Some exceptions cannot be sent between processes, and none with its traceback. So the process that reads never raises:
it sends a `Failed` in place of the batch, and the training process raises from that.
"""

from __future__ import annotations

import errno
import traceback
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler

import torch
from torch.utils.data import get_worker_info

from hasten.errors import DataFailed, HastenError, OutOfMemory, UserCodeFailed
from hasten.users_code import reason_of, users_frame, users_traceback

# torch raises a plain RuntimeError when the host allocator fails; only the text says so.
_HOST_ALLOCATOR = ("allocate memory", "not enough memory", "DefaultCPUAllocator", "std::bad_alloc")


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    error: HastenError
    cause: BaseException | None = None
    trace: str = ""  # from the user's first frame on; in a worker only, as the cause keeps its own in this process

    def to_raise(self) -> HastenError:
        """The error, with the original exception as its cause."""
        if isinstance(self.error, UserCodeFailed):
            self.error.trace = self.trace
        self.error.__cause__ = self.cause
        return self.error


def failed_sample(error: BaseException, field: str, epoch: int, index: int, seed: int) -> Failed:
    """Reading one sample raised. What the system could not read is an error of the data, all else of the user's code;
    an error of hasten has its own kind."""
    what = f"sample {index} of Job.{field} could not be read {moment(epoch)}: {reason_of(error)}"
    if isinstance(error, HastenError):
        return Failed(error=type(error)(what, fix=error.fix), cause=_sendable(error))
    fix = f"read it alone, as {field}[{index}]; its random numbers began at seed {seed}"
    return _failed(error, kind_of(error), what, fix)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory is exhausted, of the host or of a device."""
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _HOST_ALLOCATOR):
        return True
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or getattr(error, "errno", None) == errno.ENOMEM


def kind_of(error: BaseException) -> type[HastenError]:
    """The kind of hasten's error for what a data set raised."""
    if is_out_of_memory(error):
        return OutOfMemory
    return DataFailed if isinstance(error, OSError | EOFError) else UserCodeFailed


def failed_batch(
    error: BaseException, field: str, epoch: int, first: int, samples: int, *, own_code: bool, seed: int | None = None
) -> Failed:
    """Reading many samples at once, or making a batch of them, raised; own_code when the user's function did it. seed:
    of its random numbers; None where it was given none."""
    kind = UserCodeFailed if own_code else DataFailed
    fix = "check that sample and collate" if own_code else "give the samples one shape and type, or a collate"
    if is_out_of_memory(error):
        kind, fix = OutOfMemory, "use a smaller batch_size, or fewer workers"
    elif seed is not None:
        fix += f"; its random numbers began at seed {seed}"
    what = f"{samples} samples of Job.{field}, the first with index {first}, could not become a batch {moment(epoch)}"
    return _failed(error, kind, f"{what}: {reason_of(error)}", fix)


def failed_start(error: Exception, *, field: str, worker: int) -> Failed:
    """The user's worker_init_fn raised."""
    what = f"worker_init_fn of Job.{field} failed in loader worker {worker}: {reason_of(error)}"
    return _failed(error, kind_of(error), what, "check this line")


def failed_arrival(error: Exception, *, field: str) -> Failed:
    """A batch from a loader worker could not be unpickled or pinned in the training process."""
    what = f"a batch of Job.{field} could not be taken from its loader worker: {reason_of(error)}"
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or "items of ancdata" in str(error):
        fix = "allow more open files (ulimit -n), or put fewer tensors into a batch"
        return _failed(error, DataFailed, what, fix)
    fix = "check how this class is unpickled; or set loader_workers = 0 (num_workers=0 in a DataLoader)"
    return _failed(error, kind_of(error), what, fix)


def _failed(error: BaseException, kind: type[HastenError], what: str, fix: str) -> Failed:
    raised = kind(what, where=users_frame(error), fix=fix)
    return Failed(
        error=raised, cause=_sendable(error), trace="" if get_worker_info() is None else users_traceback(error)
    )


def moment(epoch: int) -> str:
    """For messages, which count epochs from 1, as log lines do. epoch: from 0; -1 in an evaluation."""
    return f"in epoch {epoch + 1}" if epoch >= 0 else "in an evaluation"


def _sendable(error: BaseException) -> BaseException:
    """The exception itself in the training process; in a worker, one that can be sent, its traceback in a note."""
    if get_worker_info() is None:
        return error
    trace = "".join(traceback.format_exception(error))
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))  # pyright: ignore[reportAttributeAccessIssue]: of Pickler
    except Exception:  # whatever a class of the user's raises when it is pickled
        error = RuntimeError(reason_of(error))
    error.add_note(f"In a loader worker:\n{trace}")
    return error
