from __future__ import annotations

import pytest
from bench.endless import endless


def test_windows_go_on_where_the_last_one_ended_and_from_epoch_to_epoch():
    taken = []
    epochs = iter("abcdefgh")

    def epoch():
        name = next(epochs)
        for batch in range(3):
            taken.append(f"{name}{batch}")
            yield batch

    window = endless(epoch)
    assert taken == []
    window(2)
    assert taken == ["a0", "a1"]
    window(5)
    assert taken == ["a0", "a1", "a2", "b0", "b1", "b2", "c0"]


def test_an_epoch_begins_in_the_window_of_its_first_batch():
    begun = []

    def epoch():
        begun.append("epoch")
        return [1, 2, 3]

    window = endless(epoch)
    window(3)
    assert len(begun) == 1
    window(1)
    assert len(begun) == 2


def test_an_epoch_without_a_batch_ends_the_benchmark():
    with pytest.raises(RuntimeError, match="no batch"):
        endless(list)(1)
