from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.errors import DataFailed, JobError, PlanError
from support.data.loaders import (
    TWO_WORKERS,
    Drawing,
    DrawingStream,
    DrawingTogether,
    columns,
    content,
    epoch_of,
    indices,
    loader_of,
    steps,
)


@pytest.mark.trap(40)
@given(
    count=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    microbatch_size=st.none() | st.integers(1, 9),
    world_size=st.integers(1, 5),
    epoch=st.integers(0, 9),
)
def test_every_sample_comes_once_an_epoch_however_it_is_cut(count, batch_size, microbatch_size, world_size, epoch):
    seen = Counter[int]()
    for rank in range(world_size):
        share = {"batch_size": batch_size, "microbatch_size": microbatch_size, "rank": rank, "world_size": world_size}
        seen.update(indices(epoch_of(columns(count), epoch, **share)))
    assert seen == Counter(range(count))


@pytest.mark.trap(29)
@given(
    count=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    microbatch_size=st.none() | st.integers(1, 9),
    world_size=st.integers(1, 5),
)
def test_global_batches_do_not_depend_on_the_world_or_the_microbatches(count, batch_size, microbatch_size, world_size):
    alone = steps(epoch_of(columns(count), batch_size=batch_size))
    ranks = [
        steps(
            epoch_of(
                columns(count),
                batch_size=batch_size,
                microbatch_size=microbatch_size,
                rank=rank,
                world_size=world_size,
            )
        )
        for rank in range(world_size)
    ]
    together = [[index for share in shares for index in share] for shares in zip(*ranks, strict=True)]
    assert together == alone
    assert len(alone) == loader_of(columns(count), batch_size=batch_size).steps_per_epoch
    assert all(len(batch) == batch_size for batch in alone[:-1])


@pytest.mark.trap(39)
def test_each_epoch_has_an_order_of_its_own():
    loader = loader_of(columns(50))
    orders = [tuple(indices(loader.epoch(number))) for number in range(4)]
    assert len(set(orders)) == 4
    assert tuple(indices(loader.epoch(2))) == orders[2]


@pytest.mark.trap(22)
@pytest.mark.fault("uneven inputs")
def test_a_rank_without_a_share_takes_part_with_a_sample_that_does_not_count():
    found = [epoch_of(columns(2), rank=rank, world_size=3) for rank in range(3)]
    assert [[one.samples for one in rank] for rank in found] == [[0], [1], [1]]
    assert found[0][0].batch[0].tolist() == found[1][0].batch[0].tolist()
    assert found[0][0].last


@pytest.mark.trap(36)
@given(data=st.data(), kind=st.sampled_from([Drawing, DrawingTogether, DrawingStream]), drop_last=st.booleans())
def test_an_epoch_goes_on_at_any_step_with_the_same_batches(data, kind, drop_last):
    arguments = {"microbatch_size": data.draw(st.integers(1, 5)), "drop_last": drop_last}
    whole = content(epoch_of(kind(19), 3, **arguments))
    start = data.draw(st.integers(0, sum(last for *_, last in whole)))
    skipped, begun = 0, 0
    while begun < start:
        begun += whole[skipped][-1]
        skipped += 1
    assert content(epoch_of(kind(19), 3, start, **arguments)) == whole[skipped:]


@pytest.mark.trap(3)
@given(count=st.integers(1, 30), batch_size=st.integers(1, 9), microbatch_size=st.none() | st.integers(1, 5))
def test_a_stream_is_cut_into_full_batches_and_a_marked_rest(count, batch_size, microbatch_size):
    found = steps(epoch_of(DrawingStream(count), batch_size=batch_size, microbatch_size=microbatch_size))
    assert sorted(index for batch in found for index in batch) == list(range(count))
    assert [len(batch) for batch in found[:-1]] == [batch_size] * (len(found) - 1)


@pytest.mark.trap(40)
@pytest.mark.fault("uneven inputs")
def test_a_stream_refuses_what_would_read_it_twice():
    with pytest.raises(PlanError, match="2 loader workers would each read all"):
        loader_of(DrawingStream(13), options=TWO_WORKERS)
    with pytest.raises(JobError, match="each of 2 processes would read all of it"):
        loader_of(DrawingStream(13), world_size=2)


@pytest.mark.trap(43)
@pytest.mark.fault("data set empty, smaller than a batch, drop_last → 0")
def test_data_that_fills_no_batch_is_refused_before_training():
    with pytest.raises(
        JobError, match="has 3 samples, and a batch holds 8: with drop_last that is 0 batches"
    ) as caught:
        loader_of(columns(3), batch_size=8, drop_last=True)
    assert caught.value.exit_code == 2


@pytest.mark.trap(43)
def test_dropping_the_last_batch_is_said_and_done():
    loader = loader_of(columns(10), drop_last=True)
    assert loader.dropped_per_epoch == 2
    assert loader.notices == ("drop_last drops 2 of 10 samples in every epoch",)
    assert [len(batch) for batch in steps(loader.epoch(0))] == [4, 4]
    kept = loader_of(columns(10))
    assert (kept.dropped_per_epoch, kept.notices) == (0, ())
    assert [len(batch) for batch in steps(kept.epoch(0))] == [4, 4, 2]
    assert loader_of(columns(8), drop_last=True).notices == ()
    assert loader_of(DrawingStream(8), drop_last=True).dropped_per_epoch is None


class Misjudged(DrawingStream):
    """A stream whose length says something else than it yields."""

    def __init__(self, count, says):
        super().__init__(count)
        self.says = says

    def __len__(self):
        return self.says


@pytest.mark.trap(16)
@pytest.mark.parametrize(
    ("says", "yields"), [(16, "more than 16 samples"), (8, "more than 8 samples"), (33, "20 samples")]
)
def test_a_stream_of_another_length_than_it_says_is_refused_in_one_line(says, yields):
    loader, found = loader_of(Misjudged(20, says), batch_size=8), []
    with pytest.raises(DataFailed, match=rf"__len__ says {says} samples, and __iter__ yielded {yields}") as refusal:
        found.extend(loader.epoch(0))
    assert len(found) == min(loader.steps_per_epoch, 3)
    assert "max_steps" in refusal.value.fix
