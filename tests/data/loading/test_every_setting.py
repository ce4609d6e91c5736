"""However samples are read, what is learned from stays the same bit for bit.

The product of all settings takes minutes and is run by `make proof`; a sample of it, which shrinks to the settings that
matter, is run with the other tests.
"""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.data.loading.loader_options import LoaderOptions, Placement
from support.data.loaders import Drawing, DrawingStream, DrawingTogether, content, loader_of, noisy

pytestmark = [
    pytest.mark.trap(38),
    pytest.mark.trap(39),
    pytest.mark.trap(40),
]

SAMPLES, EPOCHS = 21, 2
KINDS = {"samples": Drawing, "batches": DrawingTogether}
WORKERS, PREFETCH, RANKS = (0, 1, 2, 4), (None, 1, 3), (1, 2, 3)
EVERY = [
    LoaderOptions(workers=workers, prefetch_factor=prefetch, persistent_workers=persistent, pin_memory=pin)
    for workers, prefetch, persistent, pin in itertools.product(WORKERS, PREFETCH, (False, True), (False, True))
    if workers or (prefetch is None and not persistent)
]


def read(kind: type, options: LoaderOptions, rank: int, ranks: int, microbatch_size: int | None) -> list[object]:
    """All epochs as plain numbers; the second is left in its middle and gone on with, as a resumed run does."""
    loader = loader_of(
        kind(SAMPLES),
        collate=noisy,
        options=options,
        placement=Placement(accelerator=torch.cuda.is_available()),  # where it is not, nothing is pinned
        rank=rank,
        world_size=ranks,
        microbatch_size=microbatch_size,
    )
    found = [content(loader.epoch(number)) for number in range(EPOCHS)]
    found.append(content(loader.epoch(1, 2)))
    loader.close()
    return found


@cache
def plain(kind: type, rank: int, ranks: int, microbatch_size: int | None) -> list[object]:
    return read(kind, LoaderOptions(), rank, ranks, microbatch_size)


@settings(max_examples=5)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    options=st.sampled_from(EVERY),
    world=st.sampled_from([(rank, ranks) for ranks in RANKS for rank in range(ranks)]),
    microbatch_size=st.sampled_from([None, 1, 3]),
)
def test_no_setting_of_the_loader_changes_a_bit(kind, options, world, microbatch_size):
    assert read(KINDS[kind], options, *world, microbatch_size) == plain(KINDS[kind], *world, microbatch_size)


def test_a_stream_is_the_same_with_its_one_worker():
    def read_stream(options):
        loader = loader_of(DrawingStream(SAMPLES), collate=noisy, options=options, microbatch_size=3)
        found = [content(loader.epoch(number)) for number in range(EPOCHS)] + [content(loader.epoch(1, 2))]
        loader.close()
        return found

    expected = read_stream(LoaderOptions())
    assert read_stream(LoaderOptions(workers=1, prefetch_factor=3, persistent_workers=True)) == expected
