"""A batch of another size, made of a batch's own samples."""

from __future__ import annotations

import pytest
import torch

from hasten.errors import JobError
from hasten.techniques.common.few_samples import few_samples

ROWS = torch.arange(12).reshape(4, 3)


@pytest.mark.parametrize(("samples", "chosen"), [(2, [0, 1]), (4, [0, 1, 2, 3]), (6, [0, 1, 2, 3, 0, 1])])
def test_the_first_samples_are_taken_and_come_again_where_there_are_fewer(samples, chosen):
    assert torch.equal(few_samples(ROWS, samples), ROWS[chosen])


def test_what_has_as_many_rows_is_cut_with_the_first_tensor_and_the_rest_stays():
    batch = {"words": ROWS, "labels": torch.arange(4), "table": torch.eye(3), "scale": torch.tensor(2.0), "name": "b"}
    found = few_samples(batch, 2)
    assert [len(found[name]) for name in ("words", "labels", "table")] == [2, 2, 3]
    assert (found["scale"], found["name"]) == (2.0, "b")


@pytest.mark.parametrize("batch", ["text", [1, 2], torch.tensor(1.0), torch.empty(0, 3)], ids=str)
def test_a_batch_without_rows_is_refused(batch):
    with pytest.raises(JobError, match="no tensor has a row for each sample"):
        few_samples(batch, 2)
