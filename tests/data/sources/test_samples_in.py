"""How many samples a batch of the job's own making holds."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import default_collate

from hasten.data.sources.job_data import samples_in
from hasten.entry import prepare
from hasten.facts.plan import make_plan
from support import small_job

X, Y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)


@pytest.mark.parametrize(
    ("batch", "asked", "held"),
    [
        ((X, Y), 4, 3),
        ({"ids": X, "mask": X, "words": ["a", "b", "c"]}, 4, 3),
        (dict.fromkeys("abcd", X), 4, 3),  # by name, not one for each sample
    ],
)
def test_its_tensors_say_how_many_where_they_agree(batch, asked, held):
    assert samples_in(batch, asked) == held


def without_the_missing(samples):
    return default_collate([sample for sample in samples if sample is not None])


class Together(list):
    """Reads many at once, and leaves out what is missing."""

    def __getitems__(self, indices):
        return [self[index] for index in indices if self[index] is not None]


def after_an_epoch(plan, **data):
    """Weights, losses and evaluation of a job one of whose samples is missing, its loss a plain mean."""
    job = small_job(**data, valid=data["train"], batch_size=4, epochs=1, shuffle=False)
    with prepare(job, plan) as run:
        for batch in run.batches():
            run.step(batch)
        losses = [(window.mean, window.items) for window in run.losses.drain()]
        weights = torch.cat([each.detach().flatten() for each in run.model.parameters()])
        return weights, losses, run.evaluate().results["loss"], run.built.batches.samples_seen


ROWS = [None, *((torch.randn(6), index % 3) for index in range(1, 6))]


@pytest.mark.trap(3)
@pytest.mark.parametrize(
    "data",
    [{"train": ROWS, "collate": without_the_missing}, {"train": Together(ROWS)}],
    ids=["collate", "__getitems__"],
)
def test_a_plain_mean_weighs_by_what_is_left_of_a_batch(data):
    whole, of_whole, evaluated, seen = after_an_epoch(None, **data)
    parts, of_parts, _, seen_in_parts = after_an_epoch(make_plan(accumulation=2), **data)
    assert [items for _, items in of_whole] == [items for _, items in of_parts] == [3, 2]
    assert [mean for mean, _ in of_parts] == pytest.approx([mean for mean, _ in of_whole], rel=1e-5)
    assert torch.allclose(parts, whole, rtol=1e-5, atol=1e-7)
    assert seen == seen_in_parts == 6

    _, _, of_one_batch, _ = after_an_epoch(make_plan(evaluation_batch=6), **data)
    assert evaluated == pytest.approx(of_one_batch, rel=1e-5)
