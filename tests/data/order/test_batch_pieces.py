import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.order.batch_pieces import pieces, share

sizes = st.integers(1, 200)
worlds = st.integers(1, 9)
microbatches = st.none() | st.integers(1, 50)


@pytest.mark.trap(22)
@given(size=st.integers(1, 20), microbatch_size=st.none() | st.integers(1, 5), world_size=st.integers(1, 5))
@pytest.mark.fault("uneven inputs")
def test_every_rank_runs_as_many_passes_as_the_others(size, microbatch_size, world_size):
    assert len({len(pieces(size, microbatch_size, rank, world_size)) for rank in range(world_size)}) == 1


@pytest.mark.trap(21)
@given(size=sizes, microbatch_size=microbatches, world_size=worlds)
def test_only_the_final_piece_is_last_and_it_is_real_on_every_rank_that_has_samples(size, microbatch_size, world_size):
    for rank in range(world_size):
        found = pieces(size, microbatch_size, rank, world_size)
        assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]
        assert found[-1].samples > 0 or not any(piece.samples for piece in found)


@pytest.mark.parametrize(("size", "parts", "expected"), [(10, 3, [3, 3, 4]), (2, 3, [0, 1, 1]), (0, 2, [0, 0])])
def test_shares_are_contiguous_and_near_equal(size, parts, expected):
    spans = [share(size, part, parts) for part in range(parts)]
    assert [stop - start for start, stop in spans] == expected
    assert [start for start, _ in spans[1:]] == [stop for _, stop in spans[:-1]]
