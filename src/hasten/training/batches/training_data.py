"""The training's microbatches on the device, from any step on; and where in the data each step was."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import torch

from hasten.data.loading.batch_loader import Microbatch, TrainLoader
from hasten.data.loading.device_transfer import copied, copied_ahead, place
from hasten.data.loading.loader_options import LoaderOptions, Placement
from hasten.data.sources.job_data import Source
from hasten.facts.job import Job
from hasten.facts.ranks import Ranks
from hasten.training.step_parts.window import Observer, Phase, ignore


class BatchPlacement:
    """(batch, its source) -> the batch on the device, and prepared there where the plan says so."""

    def __init__(self, device: torch.device, options: LoaderOptions, memory_format: torch.memory_format | None) -> None:
        self.device, self._options, self._memory_format = device, options, memory_format
        self.observer: Observer = ignore  # called at Phase.PLACING and PLACED

    @property
    def is_identity(self) -> bool:
        """Whether batches stay as the loader gives them."""
        return self.device.type == "cpu" and self._memory_format is None

    def __call__(self, batch: Any, source: Source) -> Any:
        self.observer(Phase.PLACING)
        non_blocking = self._options.pin_memory
        if source.has_device_form:  # what is copied becomes a batch on the device
            batch = source.finished(place(batch, self.device, non_blocking=non_blocking))
        batch = place(batch, self.device, memory_format=self._memory_format, non_blocking=non_blocking)
        self.observer(Phase.PLACED)
        return batch

    def for_loader(self) -> Placement:
        """For data sets that can prepare their batches for it."""
        return Placement(
            accelerator=self.device.type != "cpu",
            transforms=self._options.device_transform,
            channels_last=self._memory_format is torch.channels_last,
        )


class DataPosition:
    """epoch, window: of the next optimizer step; windows count from 0 in each epoch.

    A step's number alone does not give its place in the data: epochs of a stream differ in length, and an epoch may be
    left early. So steps are counted from the start of the last pass over an epoch.
    """

    def __init__(self, steps_per_epoch: int | None) -> None:
        self.epoch, self.window = 0, 0
        self._per_epoch = steps_per_epoch
        self._start: tuple[int, int, int] | None = None  # step, epoch, window

    def start_pass(self, next_step: int) -> None:
        """Reading starts here, with this optimizer step."""
        self._start = next_step, self.epoch, self.window

    def skip_to_next_epoch(self) -> None:
        self.epoch, self.window = self.epoch + 1, 0

    def go_back_to(self, step: int) -> None:
        """That step is the next one; nothing happens where its place is not known."""
        self.epoch, self.window = self.of(step) or (self.epoch, self.window)

    def of(self, step: int) -> tuple[int, int] | None:
        """Epoch and window of a step; None where they are not known."""
        if self._start is None:
            return None
        first, epoch, window = self._start
        window += step - first
        if window >= 0:
            return epoch, window
        whole = -1 if self._per_epoch is None else epoch * self._per_epoch + window
        return None if whole < 0 else divmod(whole, self._per_epoch or 1)

    @property
    def whole_epochs(self) -> int:
        """Epochs of which every step was taken."""
        return self.epoch + (self.window == self._per_epoch)

    @property
    def is_between_epochs(self) -> bool:
        """Whether an epoch has ended and the next has not begun."""
        return self.window == 0 and self.epoch > 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "window": self.window}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.window = state["epoch"], state["window"]


class TrainingData:
    """position: of the next optimizer step. present: the microbatch handed out last, without its batch; counted: how
    many of its samples count. wait_seconds: spent waiting for the loader. steps_per_epoch: None where it is unknown, or
    may change."""

    def __init__(
        self,
        job: Job,
        source: Source,
        batch_size: int,
        microbatch_size: int | None,
        options: LoaderOptions,
        placement: BatchPlacement,
        ranks: Ranks,
        equal_parts: int | None,
    ) -> None:
        """microbatch_size: samples in one forward pass; None for a rank's whole share of the global batch.
        equal_parts: microbatches of one size in a step, at least; None for no such need."""
        self._job, self._source, self._options = job, source, options
        self._placement, self._ranks, self._equal_parts = placement, ranks, equal_parts
        self.batch_size = batch_size
        # A run that ends by its steps needs no length of an epoch.
        self._equal_epochs = source.batches is None or job.epochs is not None
        self.loader = self.loader_of(batch_size, microbatch_size)
        self.steps_per_epoch = self.loader.steps_per_epoch if self._equal_epochs else None
        self.position = DataPosition(self.steps_per_epoch)
        self.present = Microbatch(None, 0, True)
        self.counted, self.samples_seen, self.wait_seconds = 0, 0, 0.0
        self._copy_stream: torch.cuda.Stream | None = None

    def loader_of(self, batch_size: int, microbatch_size: int | None) -> TrainLoader:
        """A loader of the same data with other sizes."""
        job = self._job
        return TrainLoader(
            self._source,
            batch_size=batch_size,
            microbatch_size=microbatch_size,
            equal_parts=self._equal_parts,
            options=self._options,
            seed=job.seed,
            shuffle=job.shuffle,
            drop_last=job.drop_last,
            equal_epochs=self._equal_epochs,
            replace_bad=job.on_bad_sample == "replace",
            placement=self._placement.for_loader(),
            rank=self._ranks.rank,
            world_size=self._ranks.size,
        )

    def epoch(self, next_step: int) -> Generator[Any]:
        """The batches of the microbatches that are left of the present epoch; the epoch is over when they are.

        next_step: the number of the optimizer step that the first one belongs to.
        """
        position, clock = self.position, time.perf_counter
        position.start_pass(next_step)
        self.present = self.present._replace(last=True)
        microbatches = self._placed(self.loader.epoch(position.epoch, position.window))
        while True:
            asked = clock()
            microbatch = next(microbatches, None)
            self.wait_seconds += clock() - asked
            if microbatch is None:
                break
            self.present = microbatch._replace(batch=None)
            self.counted = self._source.counted(microbatch.batch, microbatch.samples)
            yield microbatch.batch
        position.skip_to_next_epoch()

    def _placed(self, microbatches: Iterator[Microbatch]) -> Iterator[Microbatch]:
        if self._placement.is_identity:
            return microbatches

        def placed(batch: Any) -> Any:
            return self._placement(batch, self._source)

        depth = self._options.device_prefetch
        if not depth or self._source.on_accelerator:  # what is gathered on the device is made by its own stream
            return copied(microbatches, placed)
        if self._copy_stream is None:
            self._copy_stream = torch.cuda.Stream(self._placement.device)
        return copied_ahead(microbatches, placed, self._copy_stream, depth)

    def first_batch(self) -> Any:
        """The first microbatch of all, on the device."""
        return self._placement(self.loader.first_batch(), self._source)

    def describe(self, step: int) -> str:
        """Which samples an optimizer step took, in words."""
        place = self.position.of(step)
        return "samples that are no longer known" if place is None else self.loader.samples_in_words(*place)

    def split_into(self, microbatch_size: int | None) -> None:
        """Use microbatches of this size from now on; an iteration over the present epoch ends."""
        ledger = self.loader.ledger.state_dict()
        self.loader.close()
        self.loader = self.loader_of(self.batch_size, microbatch_size)
        self.loader.ledger.load_state_dict(ledger)

    @property
    def items_per_microbatch(self) -> int:
        """About how many; see Window.reference."""
        return self.loader.microbatch_size or self.batch_size

    def state_dict(self) -> dict[str, Any]:
        return {"microbatch_size": self.loader.microbatch_size, "replaced": self.loader.ledger.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["microbatch_size"] != self.loader.microbatch_size:
            self.split_into(state["microbatch_size"])
        self.loader.ledger.load_state_dict(state["replaced"])
