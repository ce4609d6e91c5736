"""A loss that moves parameters or buffers by itself does on several ranks what it does on one, or is refused."""

from __future__ import annotations

from functools import partial

import pytest
from torch.multiprocessing import ProcessRaisedException
from torch.testing import assert_close

from support.parallel.writing_jobs import step_by_step, trained
from support.ranks.process_group import on_ranks

proof = partial(pytest.param, marks=pytest.mark.proof)
INTERLEAVED = {"pipeline": (2, {"schedule": "interleaved", "microbatches": 4})}


def check_alike(found, wanted):
    assert found["told"] == ""
    assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
    for name, weight in wanted["weights"].items():
        assert_close(found["weights"][name], weight, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "choices", "reason"),
    [
        ("teacher", {"shard": "zero3"}, "writes to teacher.positions"),
        proof("teacher through .data", {"shard": "zero3"}, "writes to teacher.positions"),
        proof("follows late", {"shard": "zero3"}, "writes to teacher.positions"),
        ("replacing a parameter", {"shard": "zero3"}, "puts another parameter into the place of head.weight"),
        proof("replacing in a layer", {"shard": "zero3"}, "another parameter into the place of teacher.blocks.1.mix"),
        proof("replacing in a layer", {"shard": "zero2"}, "another parameter into the place of teacher.blocks.1.mix"),
        proof("normalizing", {"shard": "zero2"}, "writes to head.weight"),
        proof("behind", {"shard": "zero2"}, "writes to blocks.1.mix.bias"),
        proof("shrinking", {"shard": "zero3"}, "writes to positions"),
        proof("shrinking", {"pipeline": 2}, "a call of the loss writes to positions"),
        proof("counting", INTERLEAVED, '"1f1b" may do'),
        proof("between", {"shard": "zero2"}, "writes to blocks.1.mix.bias"),
        proof("around", {"shard": "zero3"}, "computes with a layer's parameters, and does not call the layer"),
        ("penalty", {"shard": "zero3"}, "computes with a layer's parameters, and does not call the layer"),
        ("penalizing gradients of blocks", {"shard": "zero3"}, "differentiates in its forward pass"),
        proof("penalizing gradients", {"shard": "zero2"}, "differentiates in its forward pass"),
        ("adversarial", {"shard": "zero3"}, "differentiates in its forward pass"),
        ("scaled", {"shard": "zero3"}, "holds scale: numbers without a dimension"),
        ("noisy", {}, "noise of an optimizer needs a generator of its own"),
        ("reviving", {}, "has moved words.weight otherwise on each process"),
        proof("centred by a parameter", {"shard": "zero3"}, "centre otherwise on each process"),
        proof("centred by a parameter", {}, "centre otherwise on each process"),
        ("masking", {}, "holds Masking.mask, of another shape on each process"),
        proof("projecting", {}, "matrix, which each process has made otherwise"),
        ("replacing", {}, "has put another layer into the place of head"),
        proof("replacing", {"shard": "zero3"}, "has put another layer into the place of head"),
    ],
    ids=str,
)
def test_what_would_train_something_else_is_refused_by_name(name, choices, reason, tmp_path):
    for found in on_ranks(2, tmp_path, trained, name, choices):
        assert reason in found["told"]


@pytest.mark.parametrize("choices", [{"pipeline": 2}, proof({"tensor": 2})], ids=str)
def test_all_ranks_learn_that_some_of_them_hold_other_weights(choices, tmp_path):
    for found in on_ranks(4, tmp_path, trained, "moving by rank", choices):
        assert "has moved blocks.0.mix.weight otherwise on each process" in found["told"]


@pytest.mark.proof
def test_stages_in_parts_refuse_a_penalty_on_a_layers_weights(tmp_path):
    with pytest.raises(ProcessRaisedException, match="does not call the layer"):
        on_ranks(4, tmp_path, step_by_step, "late penalty", {"pipeline": 2, "shard": "zero3"})


@pytest.mark.parametrize(
    ("name", "choices", "alone"),
    [
        proof("teacher", {}, {}),
        proof("normalizing", {}, {}),
        proof("normalizing", {"tensor": 2}, {}),
        ("behind", {"shard": "zero3"}, {}),  # written to in parts
        proof("counting", {"pipeline": (2, {"microbatches": 4})}, {"accumulation": 4}),
        ("many formats", {}, {}),
        proof("adversarial to blocks", {"shard": "zero2"}, {}),
        proof("frozen in parameters", {}, {}),
        ("frozen in parameters", {"shard": "zero3"}, {}),
        proof("frozen in parameters", {"pipeline": 2}, {}),
        proof("block frozen in parameters", {"shard": "zero2"}, {}),
    ],
    ids=str,
)
def test_what_follows_from_the_weights_alone_is_what_one_process_does(name, choices, alone, tmp_path):
    wanted = trained(name, alone)
    for found in on_ranks(2, tmp_path, trained, name, choices):
        check_alike(found, wanted)


@pytest.mark.parametrize("choices", [{}, proof({"shard": "zero3"})], ids=str)
def test_buffers_that_a_loss_holds_are_those_of_the_first_process(choices, tmp_path):
    first, second = on_ranks(2, tmp_path, trained, "centred", choices)
    assert first["losses"] == second["losses"]
    check_alike(first, second)
