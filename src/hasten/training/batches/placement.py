"""Batches are put on the device, and prepared there where the plan says so."""

from __future__ import annotations

from typing import Any

import torch

from hasten.data.loading.device_transfer import place
from hasten.data.loading.loader_options import LoaderOptions, Placement
from hasten.data.sources.job_data import Source
from hasten.training.step_parts.phases import Observer, Phase, ignore


class BatchPlacement:
    """(batch, its source) -> the batch on the device."""

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
        """What data sets are told, so that they can prepare for it."""
        return Placement(
            accelerator=self.device.type != "cpu",
            transforms=self._options.device_transform,
            channels_last=self._memory_format is torch.channels_last,
        )
