"""A vocabulary and a sequence in shares: what ranks train is what one process trains, or they refuse."""

from __future__ import annotations

from functools import cache

import pytest

from support.parallel.alike import check_alike
from support.parallel.tensor_jobs import (
    all_refused,
    strange_word,
    trained,
)

GPT_WORDS, WORDS_AND_HEAD = {"vocabulary": ["words", "head"]}, {"vocabulary": ["words", "head"], "sequence": True}
SEQUENCE = {"sequence": True}


def together(size, options):
    return {"tensor": (size, options)}


@cache
def alone(model):
    return trained({}, model)


@pytest.mark.trap(24)
@pytest.mark.parametrize(
    ("ranks", "choices", "model"),
    [
        (2, {**together(2, WORDS_AND_HEAD), "microbatch": 2}, "encoder"),
        *(
            pytest.param(ranks, choices, model, marks=pytest.mark.proof)
            for ranks, choices, model in [
                (2, together(2, WORDS_AND_HEAD), "gpt"),
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
def test_shares_of_words_and_of_a_sequence_train_what_one_process_does(ranks, choices, model, run_on):
    for found in run_on(ranks, trained, choices, model):
        check_alike(found, alone(model))


def test_a_word_that_no_vocabulary_has_is_refused_as_by_one_process(run_on):
    for told in run_on(2, strange_word, -1):
        assert told == "IndexError"


def test_what_cannot_be_in_shares_is_refused_with_the_reason(run_on):
    cases = [
        ({"vocabulary": ["head"]}, {}, "words.weight and head.weight are one tied parameter, but only head.weight"),
        ({"vocabulary": ["nothing"]}, {}, "which matches nothing in the model"),
        (GPT_WORDS, {"loss": "smoothed"}, "remove sequence or vocabulary"),
        (GPT_WORDS, {"loss": "squared"}, "the gradient of"),
        (SEQUENCE, {"model": "mixing"}, "the loss is"),
        (SEQUENCE, {"model": "batch norm"}, "normalizes over the batch"),
        ({"sequence": ["nothing.*"]}, {}, "which matches nothing in the model"),
        ({"sequence": 3}, {}, "the plan asks for tensor"),
    ]
    asked = [(together(2, options), changes) for options, changes, _ in cases]
    for (*_, reason), *found in zip(cases, *run_on(2, all_refused, asked), strict=True):
        assert all(reason in each for each in found), (reason, found)
