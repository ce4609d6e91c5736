"""Public reports of several processes that trained other than one process does."""

from __future__ import annotations

import pytest
import torch

from support.ranks.process_group import on_ranks
from support.ranks.reported_jobs import method_loss, own_method_zeros, reported, token_loss, weights_and_norms
from support.training.reported_runs import assert_weights, flat


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two ranks found, of which each holds a half of every parameter where it clips."""
    return on_ranks(2, tmp_path_factory.mktemp("ranks"), reported, {"shard": "zero3"})


def test_ranks_drop_different_elements(ranks):
    """huggingface/transformers#31412, mlcommons/training#844"""
    first, second = (each["drawn"]["masks"] for each in ranks)
    assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_a_data_set_that_chooses_at_random_chooses_other_samples_on_each_rank(ranks):
    """pixeli99/SVD_Xtend#75"""
    chosen = flat(each["drawn"]["chosen"] for each in ranks)
    assert len(set(chosen)) == len(chosen) == 16


def test_each_token_weighs_the_same_whichever_rank_has_it(ranks):
    """PrimeIntellect-ai/prime-rl#1960 and #2562"""
    alone = weights_and_norms({}, loss=token_loss)
    for each in ranks:
        assert_weights(each["tokens"]["weights"], alone["weights"])


def test_a_loss_that_calls_a_method_of_the_model_trains_as_one_process_does(ranks):
    """OpenTSLM/OpenTSLM#49"""
    alone = weights_and_norms({}, loss=method_loss, model=own_method_zeros)
    for each in ranks:
        assert_weights(each["method"]["weights"], alone["weights"])


def test_gradients_in_parts_are_clipped_by_the_norm_of_the_whole(ranks):
    """areal-project/AReaL#312, pytorch/pytorch#170862"""
    alone = weights_and_norms({}, clip_norm=0.2)
    for each in ranks:
        assert_weights(each["clipped"]["weights"], alone["weights"])


def test_the_norm_that_is_logged_is_that_of_the_whole(ranks):
    """radixark/miles_diffusion#35"""
    alone = weights_and_norms({}, clip_norm=0.2)
    assert ranks[0]["clipped"]["norms"] == pytest.approx(alone["norms"], rel=1e-5)
