"""Public reports of several processes that trained other than one process does."""

from __future__ import annotations

import pytest
import torch

from support.ranks.process_group import on_ranks
from support.ranks.reported_jobs import (
    evaluated,
    method_loss,
    own_method_zeros,
    reported,
    samples_seen,
    token_loss,
    weighted,
    weights_and_norms,
)
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


def test_accumulation_counts_the_same_on_each_rank(ranks):
    """Lightning-AI/litgpt#1947"""
    alone = weights_and_norms({}, loss=token_loss)
    for each in ranks:
        assert_weights(each["accumulated"]["weights"], alone["weights"])


def test_ranks_keep_the_same_statistics_of_batch_norm(ranks):
    """facebookresearch/detectron2#5398, facebookresearch/fvcore#152"""
    first, second = (each["normed"]["weights"] for each in ranks)
    assert all(torch.equal(first[name], each) for name, each in second.items())


def test_samples_that_ranks_cannot_share_evenly_are_trained_on(ranks):
    """modelscope/ms-swift#9859, EleutherAI/sparsify#94"""
    assert sorted({*ranks[0]["seen"], *ranks[1]["seen"]}) == list(range(17))


def test_a_sampler_of_the_jobs_own_draws_for_all_ranks(ranks):
    """huggingface/accelerate#2865, allenai/rslearn#182"""
    alone, both = samples_seen(16, sampler=weighted()), flat(each["weighted"] for each in ranks)
    assert sorted(both) == sorted(alone)
    assert set(both) <= {0, 4, 8, 12}


def test_an_evaluation_that_ranks_cannot_share_evenly_ends_with_the_loss_of_all(ranks):
    """pytorch/torchtitan#1617"""
    for each in ranks:
        assert each["evaluated"] == pytest.approx(evaluated(5), rel=1e-6)
