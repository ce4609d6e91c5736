"""Named tensors come back from a file as they were, or not at all."""

import pytest
import torch

from hasten.errors import StorageFailed
from hasten.training.weights.tensor_file import read_tensors, write_tensors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_tensors_come_back_to_the_bit(dtype, tmp_path):
    rows = (torch.randn(4, 6) * 3).to(dtype)
    given = {"whole": rows, "turned": rows.T, "one": rows[1, 1].clone(), "none": rows[:0]}
    write_tensors(tmp_path / "a", given)
    found = read_tensors(tmp_path / "a")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], each) and found[name].dtype == dtype for name, each in given.items())


@pytest.mark.parametrize("left", [0, 7, 60])
def test_a_file_that_was_cut_is_no_file_of_tensors(left, tmp_path):
    write_tensors(tmp_path / "a", {"rows": torch.zeros(9)})
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:left])
    with pytest.raises(StorageFailed, match="could not be read"):
        read_tensors(tmp_path / "a")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StorageFailed) as caught:
        read_tensors(tmp_path / "a")
    assert caught.value.where == str(tmp_path / "a")
