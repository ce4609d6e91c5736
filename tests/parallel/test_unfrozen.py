"""What a model trains is what it trained in its first step, where ranks have divided that."""

from __future__ import annotations

import pytest

from pipeline_jobs import unfrozen
from ranks import on_ranks


@pytest.mark.parametrize("choices", [{}, {"shard": "zero3"}], ids=str)
@pytest.mark.parametrize(("parameter", "trains"), [("words.weight", True), ("norm.bias", False)])
def test_a_parameter_that_begins_or_ceases_to_be_trained_in_a_run_is_refused_by_name(
    choices, parameter, trains, tmp_path
):
    for told in on_ranks(2, tmp_path, unfrozen, choices, parameter, trains):
        assert parameter in told
        assert "after 2 steps" in told


def test_one_process_may_begin_to_train_a_parameter_in_a_run():
    assert not unfrozen({}, "words.weight", True)
