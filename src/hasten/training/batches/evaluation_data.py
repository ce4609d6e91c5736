"""The batches of an evaluation, on the device."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

from hasten.data.loading.batch_loader import EvaluationLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.job_data import Source
from hasten.facts.ranks import Ranks
from hasten.training.batches.training_data import BatchPlacement


class EvaluationData:
    """(batch size) -> the batches, each with its number of samples.

    equally_many: all ranks get the same number of batches, because each forward pass needs all of them.
    check_stop: called between two batches; may raise.
    """

    def __init__(
        self,
        source: Source,
        options: LoaderOptions,
        seed: int,
        placement: BatchPlacement,
        ranks: Ranks,
        *,
        equally_many: bool,
    ) -> None:
        self._source, self._options, self._seed = source, source.options or options, seed
        self._placement, self._ranks, self._equally_many = placement, ranks, equally_many
        self.check_stop: Callable[[], None] = lambda: None

    def _loader(self, batch_size: int) -> EvaluationLoader:
        return EvaluationLoader(
            self._source,
            batch_size=batch_size,
            options=self._options,
            seed=self._seed,
            placement=self._placement.for_loader(),
            rank=self._ranks.rank,
            world_size=self._ranks.size,
            equally_many=self._equally_many,
        )

    def __call__(self, batch_size: int) -> Generator[tuple[Any, int]]:
        with closing(self._loader(batch_size)) as microbatches:
            for microbatch in microbatches:
                self.check_stop()
                counted = self._source.counted(microbatch.batch, microbatch.samples)
                yield self._placement(microbatch.batch, self._source), counted if microbatch.samples else 0

    def check_before_start(self, batch_size: int) -> tuple[str, ...]:
        """Raises what would stop the first evaluation's loader workers, which may be hours away; returns notices."""
        with closing(self._loader(batch_size)) as first:
            first.check_before_start()
            return (*first.notices,)
