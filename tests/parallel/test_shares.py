"""A vocabulary and a sequence in shares: what ranks train is what one process trains, or they refuse."""

from __future__ import annotations

import pytest

from parallel.test_tensor import check_alike, check_weights
from support.parallel.tensor_jobs import (
    cut_and_gone_on,
    refused,
    strange_word,
    trained,
    trained_with_average,
    two_at_once,
)
from support.ranks.process_group import on_ranks

GPT_WORDS, WORDS_AND_HEAD = {"vocabulary": ["words", "head"]}, {"vocabulary": ["words", "head"], "sequence": True}
SEQUENCE = {"sequence": True}


def together(size, options):
    return {"tensor": (size, options)}


@pytest.fixture(scope="module")
def alone():
    return {model: trained({}, model) for model in ("gpt", "encoder", "length first", "padding", "adapters")}


@pytest.mark.trap(24)
@pytest.mark.parametrize(
    ("ranks", "choices", "model"),
    [
        (2, together(2, WORDS_AND_HEAD), "gpt"),
        (2, {**together(2, WORDS_AND_HEAD), "microbatch": 2}, "encoder"),
        *(
            pytest.param(ranks, choices, model, marks=pytest.mark.proof)
            for ranks, choices, model in [
                (2, together(2, GPT_WORDS), "gpt"),
                (2, together(2, {"vocabulary": ["words"]}), "padding"),
                (2, together(2, {"vocabulary": ["head"]}), "padding"),
                (2, together(2, SEQUENCE), "length first"),
                (2, together(2, SEQUENCE), "adapters"),
                (4, together(4, SEQUENCE), "length first"),
                (4, together(4, WORDS_AND_HEAD), "gpt"),
                (4, together(2, WORDS_AND_HEAD), "encoder"),
                (4, {**together(2, WORDS_AND_HEAD), "shard": "zero3"}, "gpt"),
                (4, {**together(2, WORDS_AND_HEAD), "shard": "zero2", "microbatch": 2}, "encoder"),
                (2, {**together(2, WORDS_AND_HEAD), "activation_checkpointing": "blocks"}, "gpt"),
                (2, {**together(2, WORDS_AND_HEAD), "fused_optimizer": "fused"}, "encoder"),
                (4, {**together(2, WORDS_AND_HEAD), "communication": ("plain", {"static_graph": True})}, "gpt"),
            ]
        ),
    ],
    ids=str,
)
def test_shares_of_words_and_of_a_sequence_train_what_one_process_does(ranks, choices, model, alone, tmp_path):
    for found in on_ranks(ranks, tmp_path, trained, choices, model):
        check_alike(found, alone[model])


def test_a_run_with_words_in_shares_goes_on_where_another_is_closed(alone, tmp_path):
    for losses in on_ranks(2, tmp_path, two_at_once):
        assert losses == pytest.approx(alone["gpt"]["losses"][: len(losses)], rel=1e-9)


@pytest.mark.parametrize("wrong", [20, -1])
def test_a_word_that_no_vocabulary_has_is_refused_as_by_one_process(wrong, tmp_path):
    for told in on_ranks(2, tmp_path, strange_word, wrong):
        assert told == "IndexError"


@pytest.mark.trap(36)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (together(2, WORDS_AND_HEAD), {}),
        pytest.param({}, together(2, WORDS_AND_HEAD), marks=pytest.mark.proof),
        pytest.param(together(2, WORDS_AND_HEAD), {"tensor": 2}, marks=pytest.mark.proof),
    ],
    ids=str,
)
def test_a_run_goes_on_with_words_in_shares_or_not(before, after, tmp_path):
    wanted = trained_with_average({})["weights"]
    for found in on_ranks(2, tmp_path, cut_and_gone_on, before, after):
        check_weights(found, wanted)


@pytest.mark.parametrize(
    ("ranks", "options", "changes", "reason"),
    [
        (
            2,
            {"vocabulary": ["head"]},
            {},
            "words.weight and head.weight are one tied parameter, and only head.weight would be divided",
        ),
        (2, {"vocabulary": ["nothing"]}, {}, "which matches nothing in the model"),
        (3, GPT_WORDS, {}, "words.num_embeddings = 20 cannot be divided over 3 processes"),
        (2, GPT_WORDS, {"loss": "smoothed"}, "leave sequence or vocabulary out"),
        (2, GPT_WORDS, {"loss": "squared"}, "the gradient of"),
        (2, SEQUENCE, {"model": "mixing"}, "the loss is"),
        (2, SEQUENCE, {"model": "batch norm"}, "norms over a batch"),
        (2, {"sequence": ["nothing.*"]}, {}, "which matches nothing in the model"),
        (2, {"sequence": 3}, {}, "the plan asks for tensor"),
    ],
    ids=str,
)
def test_what_cannot_be_in_shares_is_refused_with_the_reason(ranks, options, changes, reason, tmp_path):
    for told in on_ranks(ranks, tmp_path, refused, together(ranks, options), changes):
        assert reason in told
