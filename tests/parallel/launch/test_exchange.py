"""Short texts between ranks, beside what they train with."""

from __future__ import annotations

from support.parallel.exchange_jobs import TEXTS, said, waited_in_vain
from support.ranks.process_group import on_ranks


def test_texts_of_any_length_arrive_while_the_ranks_train(tmp_path):
    first, second = on_ranks(2, tmp_path, said)
    assert first[0] == second[0] == TEXTS
    pairs = [[one, other] for one, other in zip(TEXTS, [*TEXTS[1:], TEXTS[0]], strict=True)]
    assert first[1:] == [*pairs, ["", ""]]
    assert second[1:] == [[]] * 5


def test_a_rank_that_does_not_come_is_waited_for_in_limited_time(tmp_path):
    (seconds, failed), _ = on_ranks(2, tmp_path, waited_in_vain)
    assert failed == 1
    assert 0.5 < seconds < 30
