import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.sources.sample_indices import MOST_LISTED, in_words, rows_of, whole_numbers
from hasten.errors import DataFailed

FORMS = {
    "list": list,
    "generator": iter,
    "array": lambda indices: np.array(indices, dtype=np.int32),
    "tensor": lambda indices: torch.tensor(indices, dtype=torch.int64),
    "list of tensors": lambda indices: [torch.tensor(index) for index in indices],
}


@pytest.mark.parametrize("form", FORMS)
@given(indices=st.lists(st.integers(-9, 8), max_size=20))
def test_rows_are_counted_as_python_counts_them(form, indices):
    found = rows_of(FORMS[form](indices), 9, whose="a Subset")
    assert found.dtype == np.int64
    assert found.tolist() == [range(9)[index] for index in indices]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([3, 0.5], "'float' object cannot be interpreted as an integer"),
        ([3, True], "True and False are a mask"),
        (np.array([True, False]), "bool.* object cannot be interpreted as an integer"),
        (np.array([1.0, 2.0]), "float64' object cannot be interpreted as an integer"),
        ([[0, 1], [2]], "'list' object cannot be interpreted as an integer"),
        ([0, 1 << 63], "int too big to convert|too large"),
        (np.array([1 << 63], dtype=np.uint64), "int too big to convert|too large"),
    ],
)
def test_what_is_no_whole_number_is_refused_with_the_reason(wrong, why):
    with pytest.raises(
        DataFailed, match=f"a Subset gives something other than indices of samples: .*({why})"
    ) as caught:
        whole_numbers(wrong, whose="a Subset")
    assert "whole numbers" in caught.value.fix


@pytest.mark.parametrize(
    ("indices", "in_words"), [([0, 9], "the index 9 at position 1"), ([-10, 0], "the index -10 at")]
)
def test_an_index_without_a_row_is_named_with_how_many_there_are(indices, in_words):
    with pytest.raises(DataFailed, match=f"a Subset gives {in_words}.*there are 9 samples") as caught:
        rows_of(indices, 9, whose="a Subset")
    assert "from 0 to 8" in caught.value.fix


def test_samples_are_told_in_words_that_stay_short():
    assert in_words([5]) == "sample 5"
    assert in_words([5, 6]) == "samples 5, 6"
    assert in_words([5, 6, 7]) == "samples 5 to 7"
    assert in_words([5, 7, 6]) == "samples 5, 7, 6"
    assert in_words([*range(900), 7]) == f"samples {', '.join(map(str, range(MOST_LISTED)))} and 885 more"
    assert in_words([*range(0, 2 * MOST_LISTED, 2)]).endswith(f", {2 * MOST_LISTED - 2}")
