"""The search for a microbatch: sizes that ran, real steps, one global batch, and no trace left behind."""

import pytest
import torch
from torch.nn import functional

from hasten.errors import OutOfMemory
from hasten.facts.plan import make_plan
from hasten.tuning.microbatch_search import TIMED, MicrobatchSearch, MicrobatchTrial, fastest_microbatch
from support import small_job


def limited(samples: int, seen: list[int] | None = None):
    """A loss that runs out of memory above so many samples, and notes the sizes it was given."""

    def loss(model, batch):
        if seen is not None:
            seen.append(len(batch[1]))
        if len(batch[1]) > samples:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return functional.cross_entropy(model(batch[0]), batch[1])

    return loss


@pytest.fixture(scope="module")
def in_little_room():
    """A search for a batch of 16 where no more than 4 samples fit, and the sizes that its loss was given."""
    seen: list[int] = []
    return fastest_microbatch(small_job(batch_size=16, loss=limited(4, seen))), seen


@pytest.fixture(scope="module")
def in_enough_room():
    """A search where all fits, the sizes that it told of, and the caller's random state before and after."""
    visits: list[int] = []
    before = torch.get_rng_state()
    plan = make_plan(accumulation=2)
    search = fastest_microbatch(small_job(batch_size=4), plan, watch=lambda trial: visits.append(trial.size))
    return search, visits, before, torch.get_rng_state()


def test_a_size_that_does_not_fit_is_said_and_never_answered(in_little_room):
    search, _ = in_little_room
    assert [trial.size for trial in search.trials if not trial.fits] == [16, 8]
    assert search.fastest.size <= 4


def test_every_answered_size_ran_whole_steps_of_the_global_batch(in_little_room):
    search, seen = in_little_room
    assert any(trial.fits for trial in search.trials)
    for trial in search.trials:
        assert len(trial.step_seconds) == (2 * TIMED if trial.fits else 0)
        if trial.fits:
            # Two visits of warm-up and timed steps, each over microbatches that make up the batch of 16.
            assert seen.count(trial.size) >= 2 * TIMED * 16 // trial.size - 2 * 16 // trial.size


def test_the_larger_of_two_equal_sizes_is_preferred():
    trials = (
        MicrobatchTrial(size=8, fits=True, step_seconds=(1.0, 1.0)),
        MicrobatchTrial(size=4, fits=True, step_seconds=(1.0, 1.0)),
        MicrobatchTrial(size=2, fits=False),
    )
    assert MicrobatchSearch(batch_size=8, trials=trials).fastest.size == 8


def test_when_nothing_fits_it_is_an_error():
    with pytest.raises(OutOfMemory, match="one sample"):
        fastest_microbatch(small_job(loss=limited(0)))


@pytest.mark.trap(31)
def test_the_search_leaves_the_callers_random_state_alone(in_enough_room):
    _, _, before, after = in_enough_room
    assert torch.equal(before, after)


def test_progress_is_told_after_every_visit(in_enough_room):
    search, visits, _, _ = in_enough_room
    assert len(visits) == 2 * len(search.trials)
