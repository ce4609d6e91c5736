"""The search for a microbatch: sizes that ran, real steps, one global batch, and no trace left behind."""

import pytest
import torch
from torch.nn import functional

from hasten.errors import OutOfMemory
from hasten.facts.plan import make_plan
from hasten.tuning.microbatch_search import TIMED, microbatch_trials
from support import small_job


def limited(samples: int, seen: list[int]):
    """A loss that runs out of memory above so many samples, and notes the sizes it was given."""

    def loss(model, batch):
        seen.append(len(batch[1]))
        if len(batch[1]) > samples:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return functional.cross_entropy(model(batch[0]), batch[1])

    return loss


@pytest.mark.trap(31)
def test_every_size_that_fits_runs_whole_steps_of_the_global_batch():
    seen, told, before = list[int](), list[tuple[int, int]](), torch.get_rng_state()
    job = small_job(batch_size=16, loss=limited(4, seen))
    trials = microbatch_trials(job, make_plan(accumulation=2), watch=lambda done, whole: told.append((done, whole)))
    assert [trial.size for trial in trials] == [16, 8, 4, 2, 1]
    assert told == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    assert [len(trial.step_seconds) for trial in trials] == [0, 0, TIMED, TIMED, TIMED]
    for trial in trials[2:]:
        assert seen.count(trial.size) >= TIMED * 16 // trial.size
    assert torch.equal(torch.get_rng_state(), before)


def test_when_nothing_fits_it_is_an_error():
    with pytest.raises(OutOfMemory, match="one sample"):
        microbatch_trials(small_job(loss=limited(0, [])))
