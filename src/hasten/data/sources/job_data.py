"""What Job.train and Job.valid may be, made one kind of record.

| given | becomes |
|---|---|
| a tensor or NumPy array, or a tuple or dictionary of them, of one length | columns: batches are gathered by index |
| a TensorDataset, also under Subset (random_split) | the same, without touching a sample in Python |
| a map-style data set: any object with __getitem__ and __len__, a list of samples | read sample by sample |
| an iterable data set: any object with __iter__ and without __getitem__ | read as a stream |
| a DataLoader | its data set, collate, sampler, batch size, drop_last and worker settings; or its batch_sampler |
| a function without arguments | whatever it returns |

A gathered batch has the form of what was given, and of a TensorDataset that of a list, as torch's own collation has it.
Columns keep their dtype; NumPy arrays are not copied.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from hasten.data.images.image_folder import ImageFolder
from hasten.data.loading.loader_options import LoaderOptions, Placement
from hasten.data.order.sample_order import SampleOrder
from hasten.data.order.sampled_order import SampledBatches
from hasten.data.sources.augmented import parts_of_dataset, steady_reason, takes_draws
from hasten.data.sources.column_gather import Columns, Rows, formed, parts_of
from hasten.data.sources.sample_indices import rows_of
from hasten.errors import RAISED, JobError, UserCodeFailed
from hasten.facts.job import describe
from hasten.users_code import is_users_file, reason_of, users_frame

_WRITE = "give a data set, a tuple of tensors or arrays, a DataLoader, or a function that returns one of these"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One data set of a job, with the settings of a DataLoader around it."""

    field: str  # "train" or "valid"
    dataset: Any
    count: int | None  # samples in one epoch; None for an iterable without a length
    iterable: bool = False
    columns: Columns | None = None  # None where samples must be read one by one
    rows: np.ndarray | None = None  # int64: which row of the columns each sample is; None where all are in order
    collate: Callable[[list[Any]], Any] = default_collate
    batch_size: int | None = None  # the job's own, or the DataLoader's; None where neither names one
    shuffle: bool | None = None  # None leaves it to the job
    drop_last: bool = False
    sampler: Iterable[int] | None = None  # a sampler of the user's own, which then decides the order
    batches: SampledBatches | None = None  # of a batch sampler of the user's own, which then decides what a batch is
    order: Callable[[int, bool], SampleOrder] | None = None
    """(seed, shuffle) -> the data set's own order, where not every sample of it is as near as any other."""
    options: LoaderOptions | None = None  # how the DataLoader was set; None where none was given
    worker_init: Callable[[int], None] | None = None
    notices: tuple[str, ...] = ()  # which settings of a DataLoader are ignored, for the user to know
    reads_model: str | None = None  # where it reaches the model that is trained (model_in_data.py); None: it does not

    @property
    def gathers(self) -> bool:
        """True when a batch is gathered from columns: none of the user's code runs."""
        return self.columns is not None

    @property
    def why_not_ahead(self) -> str | None:
        """Why its samples must not be read before the step that uses them; None where they may."""
        reads = self.reads_model
        return None if reads is None else f"Job.{self.field} uses the model that is being trained ({reads})"

    @property
    def row_count(self) -> int | None:
        """How many rows an index can choose from; None where the data set itself answers to an index."""
        if self.columns is None:
            return None
        return len(parts_of(self.columns)[0] if self.rows is None else self.rows)

    @property
    def on_accelerator(self) -> bool:
        return self.columns is not None and any(part.device.type != "cpu" for part in parts_of(self.columns))

    @property
    def has_device_form(self) -> bool:
        """Whether its batches can be prepared for an accelerator."""
        # Both, and callable: a user's data set may have a field of one of these names.
        return not self.gathers and all(callable(getattr(self.dataset, name, None)) for name in ("placed", "finished"))

    def prepared(self, where: Placement) -> Source:
        """The same source with batches in the form for their device, where the data set has such forms."""
        if not self.has_device_form:
            return self
        placed = self.dataset.placed(where)
        return replace(self, dataset=placed, notices=(*self.notices, *getattr(placed, "notices", ())))

    def counted(self, batch: Any, asked: int) -> int:
        """How many samples a batch holds that was made of `asked` of them: the weight of a plain mean over it."""
        if self.gathers or (self.collate is default_collate and not reads_batches(self.dataset)):
            return asked
        return samples_in(batch, asked)

    def finished(self, batch: Any) -> Any:
        """A batch on its device, after the work that the data set left for the device."""
        return self.dataset.finished(batch) if self.has_device_form else batch


def source_of(
    data: object,
    *,
    field: str,
    batch_size: int | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Source:
    """Read what a job was given as `field`, with the job's own batch size and collate where it has them. Raises
    JobError for what cannot be used, DataFailed for a Subset of what is not there, and UserCodeFailed when a function
    that should build the data raises."""
    if not _is_data(data) and callable(data):
        data = _built(data, field)
    if isinstance(data, DataLoader):
        source = _of_loader(data, field, batch_size, collate)
    else:
        source = replace(_of_dataset(data, field, collate), batch_size=batch_size)
    if source.count == 0:
        raise JobError(field, "has 0 samples", "check its path and its filter")
    return source


def reads_batches(dataset: object) -> bool:
    """Whether a data set reads many samples at once, by a __getitems__ that is more than torch's loop over them."""
    if type(dataset) in (Subset, StackDataset):
        return any(map(reads_batches, parts_of_dataset(dataset)))
    return callable(getattr(dataset, "__getitems__", None))


def samples_in(batch: Any, asked: int) -> int:
    """How many samples a batch holds that a collate function of the job made of `asked` ones: it may have dropped some.
    The first dimension of the batch, or of the tensors directly in it. It is `asked` where these do not agree or there
    are none; where there are more; where a list may hold one tensor for each sample; and where the dimension is 0, as
    of a rank without a share. A loss that returns hasten.Loss(total, count) says it exactly."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else (batch,)
    tensors = [part for part in parts if isinstance(part, Tensor) and part.dim()]
    lengths = {len(tensor) for tensor in tensors}
    one_for_each = len(tensors) == asked and len({(tensor.dtype, tensor.dim()) for tensor in tensors}) == 1
    if len(lengths) != 1 or (one_for_each and isinstance(batch, list | tuple)):
        return asked
    found = lengths.pop()
    return found if 0 < found <= asked else asked


def why_not_in_threads(source: Source) -> str | None:
    """Why many threads of one process cannot read a source; None where they can."""
    if source.gathers:
        return "its batches are gathered from memory, without anything to wait for"
    if source.iterable:
        return "it is an iterable data set, which only one reader can go through"
    if steady_reason(source.dataset) is None and not takes_draws(source.dataset):
        return "its samples may draw from the process's random generators, which threads share"
    if source.collate is not default_collate:
        return "its collate function may draw from the process's random generators, which threads share"
    return None


def _is_data(data: object) -> bool:
    return not isinstance(data, type) and any(hasattr(data, name) for name in ("__getitem__", "__iter__"))


def _built(function: Callable[[], Any], field: str) -> object:
    try:
        data = function()
    except RAISED as error:
        what = f"the function given as Job.{field} raised {reason_of(error)}"
        raise UserCodeFailed(what, where=users_frame(error), fix=f"call it alone: {field}()") from error
    if not _is_data(data):
        raise JobError(field, f"is a function that returned {describe(data)}", _WRITE)
    return data


def _of_loader(
    loader: DataLoader[Any], field: str, batch_size: int | None, collate: Callable[..., Any] | None
) -> Source:
    batching = _batching(loader, field, batch_size)
    own = None if loader.collate_fn is default_collate else loader.collate_fn
    if own is not None and collate is not None and own is not collate:
        was = f"is given, and the DataLoader in {field} has its own collate_fn"
        raise JobError("collate", was, "keep one of the two")
    source = _of_dataset(loader.dataset, field, collate or own)
    workers, notices = loader.num_workers, list(_ignored(loader))
    if source.iterable and workers > 1:
        workers = 1
        notices.append(f"{field}: 1 loader worker instead of {loader.num_workers}: it is an iterable data set")
    taken = replace(
        source,
        batch_size=None if batching is None else batching.batch_size,
        drop_last=batching is not None and batching.drop_last,
        options=LoaderOptions(
            workers=workers,
            prefetch_factor=loader.prefetch_factor if workers else None,
            persistent_workers=loader.persistent_workers,
            pin_memory=loader.pin_memory,
        ),
        worker_init=loader.worker_init_fn,
        notices=tuple(notices),
    )
    if batching is None:
        batches = SampledBatches(loader.batch_sampler, source.count or 0, source.row_count)
        return replace(taken, batches=batches)
    return taken if source.iterable else _with_sampler(taken, batching.sampler, len(loader.dataset))  # pyright: ignore[reportArgumentType]


def _batching(loader: DataLoader[Any], field: str, batch_size: int | None) -> BatchSampler | None:
    """torch's own batch sampler, whose sampler and size are the loader's; None for one of the user's."""
    found = loader.batch_sampler
    if found is None:
        write = "give it single samples and a batch_size, or a batch_sampler"
        raise JobError(field, "is a DataLoader with batch_size=None", write)
    own = type(found) is not BatchSampler
    if isinstance(found, DistributedSampler) or isinstance(getattr(found, "sampler", None), DistributedSampler):
        raise _distributed(field)
    if batch_size is not None and (own or batch_size != found.batch_size):
        has = "its own batch_sampler" if own else found.batch_size
        was = f"is {batch_size}, and the DataLoader in {field} has {has}"
        raise JobError("batch_size", was, "write the number once: remove batch_size from the job")
    return None if own else found


def _distributed(field: str) -> JobError:
    write = "give the data set itself: every process gets its own share of each batch"
    return JobError(field, "is a DataLoader with a DistributedSampler", write)


def _with_sampler(source: Source, sampler: Any, samples: int) -> Source:
    if type(sampler) is SequentialSampler:
        return replace(source, shuffle=False)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == samples:
        return replace(source, shuffle=True)
    if (count := _length_or_none(sampler, source.field)) is None:
        was = f"is a DataLoader with a sampler without a length, {type(sampler).__name__}"
        raise JobError(source.field, was, "give the sampler `def __len__(self) -> int`: the samples of an epoch")
    return replace(source, sampler=sampler, count=count)


def _ignored(loader: DataLoader[Any]) -> Iterable[str]:
    if loader.generator is not None and type(loader.sampler) is RandomSampler:
        yield "the DataLoader's generator is ignored: the order follows from Job.seed and the epoch"
    if loader.timeout or loader.multiprocessing_context is not None:
        yield "the DataLoader's timeout and multiprocessing_context are ignored"


def _of_dataset(data: Any, field: str, collate: Callable[[list[Any]], Any] | None) -> Source:
    if isinstance(data, Tensor | np.ndarray | tuple | dict):
        columns = _columns(data, field)
        if collate is None or collate is default_collate:
            return Source(field=field, dataset=data, count=len(parts_of(columns)[0]), columns=columns)
        data = Rows(columns)
    if isinstance(data, str | bytes | set | frozenset) or not _is_data(data):
        raise JobError(field, f"is {describe(data)}, which is not a data set", _WRITE)
    data = _with_image_folders(data)
    chosen = collate or default_collate
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        if hasattr(data, "__next__"):  # a generator, or another iterator
            write = "give an object whose __iter__ starts from the beginning, such as a torch IterableDataset"
            raise JobError(field, f"is {describe(data)}, which can be read only once", write)
        return Source(field=field, dataset=data, count=_length_or_none(data, field), iterable=True, collate=chosen)
    count = _length_or_none(data, field)
    if count is None:
        write = "give it `def __len__(self) -> int`, or make it an IterableDataset"
        raise JobError(field, f"is {describe(data)}, which has __getitem__ but no length", write)
    columns, rows = (chosen is default_collate and _columns_within(data, field)) or (None, None)
    order = getattr(data, "sample_order", None)
    return Source(
        field=field,
        dataset=data,
        count=count,
        columns=columns,
        rows=rows,
        order=cast("Callable[[int, bool], SampleOrder]", order) if callable(order) else None,
        collate=chosen,
    )


def _with_image_folders(data: Any) -> Any:
    """A Subset of an ImageFolder as one ImageFolder; any other data set unchanged."""
    if type(data) is Subset and isinstance(whole := _with_image_folders(data.dataset), ImageFolder):
        return whole.subset(data.indices)
    return data


def _length_or_none(data: Any, field: str) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None
    except (ValueError, OverflowError) as error:
        if is_users_file(traceback.extract_tb(error.__traceback__)[-1].filename):
            raise
        raise JobError(
            field, f"has a length that Python refuses: {error}", "return a whole number of 0 or more"
        ) from None


def _columns_within(dataset: object, field: str) -> tuple[Columns, np.ndarray | None] | None:
    """The tensors behind a TensorDataset, and which rows of them are meant; None for any other data set."""
    # Exact types only: a subclass may change what a sample is.
    if type(dataset) is TensorDataset:
        return [tensor.detach() for tensor in dataset.tensors], None
    if type(dataset) is Subset and (inner := _columns_within(dataset.dataset, field)) is not None:
        columns, rows = inner
        count = len(dataset.dataset)  # pyright: ignore[reportArgumentType]: of one of the two, it has a length
        chosen = rows_of(dataset.indices, count, whose=f"a Subset in Job.{field}")
        return columns, chosen if rows is None else rows[chosen]
    return None


def _columns(data: Tensor | np.ndarray | tuple[Any, ...] | dict[Any, Any], field: str) -> Columns:
    if isinstance(data, Tensor | np.ndarray):
        return _column(data, field, "")
    named = list(data.items()) if isinstance(data, dict) else list(enumerate(data))
    columns = {name: _column(value, field, f"[{name!r}]") for name, value in named}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"[{name!r}] has {length}" for name, length in lengths.items())
        raise JobError(field, f"holds tensors of different lengths: {listed} rows", "give them one row for each sample")
    form = dict if isinstance(data, dict) else type(data) if hasattr(data, "_make") else tuple
    return formed(form, [*columns], [*columns.values()])


def _column(value: object, field: str, place: str) -> Tensor:
    if isinstance(value, np.ndarray):
        with warnings.catch_warnings():
            # torch warns of read-only memory. Rows are only ever copied out of a column, so it is safe here.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            value = torch.from_numpy(value)
    if not isinstance(value, Tensor):
        write = "give a tuple or dictionary of tensors or arrays; put other samples into a list or a data set"
        raise JobError(field, f"{field}{place} is {describe(value)}", write)
    return value.detach()
