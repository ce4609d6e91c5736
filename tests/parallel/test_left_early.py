"""Stages leave the loss in the middle, and are as the whole: in what is kept in Python, and in what is made late."""

from __future__ import annotations

from functools import partial

import pytest
from torch.testing import assert_close

from support.parallel.left_early_jobs import trained
from support.ranks.process_group import on_ranks

ONE_BY_ONE = {"microbatches": 4, "before": ["blocks.2"]}
INTERLEAVED = {"microbatches": 4, "schedule": "interleaved"}
proof = partial(pytest.param, marks=pytest.mark.proof)


@pytest.mark.trap(24)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("scaled", ONE_BY_ONE),
        proof("scaled", {"microbatches": 4, "before": ["blocks.1"]}),
        proof("descending", ONE_BY_ONE),
        proof("functional", ONE_BY_ONE),
        ("table", INTERLEAVED),
        proof("table", ONE_BY_ONE),
        proof("masking", ONE_BY_ONE),
        proof("masking", INTERLEAVED),
        proof("warming", ONE_BY_ONE),
        proof("alternating", ONE_BY_ONE),
        proof("counted", ONE_BY_ONE),
        ("steering", ONE_BY_ONE),
        proof("counted seldom", ONE_BY_ONE),
        proof("buffer before", ONE_BY_ONE),
        proof("number behind", ONE_BY_ONE),
        proof("number behind", INTERLEAVED),
        proof("without head", ONE_BY_ONE),
        proof("cached", ONE_BY_ONE),
        ("told on one rank", ONE_BY_ONE),
        proof("printing", ONE_BY_ONE),
    ],
    ids=str,
)
def test_stages_train_and_evaluate_as_the_whole(name, options, tmp_path):
    wanted = trained(name, {"microbatch": 2})
    for found in on_ranks(2, tmp_path, trained, name, {"pipeline": (2, options)}):
        assert found["told"] == ""
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
        assert found["results"] == pytest.approx(wanted["results"], rel=1e-9)
        assert found["hooks"] == wanted["hooks"]
        for key, weight in wanted["weights"].items():
            assert_close(found["weights"][key], weight, rtol=1e-9, atol=1e-10)


@pytest.mark.trap(24)
@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        proof("kept", ONE_BY_ONE, "makes or resizes blocks.0.scale, blocks.1.scale"),
        ("gated", ONE_BY_ONE, "the loss reads blocks.0.gate, blocks.1.gate, which another process has"),
        ("counted", INTERLEAVED, "stage 1 depends on model.seen, which a call of the loss moves elsewhere"),
        proof("warming", INTERLEAVED, "depends on Job.loss.calls, which a call of the loss moves elsewhere"),
        proof("counted behind", ONE_BY_ONE, "stage 1 depends on seen, which a call of the loss moves elsewhere"),
        proof("counted behind", INTERLEAVED, "stage 1 depends on seen, which a call of the loss moves elsewhere"),
        (
            "seldom steering",
            ONE_BY_ONE,
            "moves words's forward hooks, itself or in its model, in some calls and not in the first ones",
        ),
        proof(
            "seldom evaluating",
            ONE_BY_ONE,
            "moves model.masking, itself or in its model, in some calls and not in the first ones",
        ),
        proof(
            "counted seldom",
            INTERLEAVED,
            "moves model.level, itself or in its model, in some calls and not in the first ones",
        ),
        proof("buffer before", INTERLEAVED, "stage 1 depends on seen, which a call of the loss moves elsewhere"),
        ("detaching", ONE_BY_ONE, "no gradient of the loss reaches what blocks.2 is given"),
        ("stacking", ONE_BY_ONE, "moves model.modes, itself or in its model, in some calls"),
        proof("stacking", INTERLEAVED, "in some calls and not in the first ones: a process with several stages"),
        ("list behind", ONE_BY_ONE, "stage 1 depends on Job.loss.held, which"),
        proof("array behind", ONE_BY_ONE, "stage 1 depends on Job.loss.held, which"),
        proof("number of numpy behind", ONE_BY_ONE, "stage 1 depends on Job.loss.held, which"),
        proof("tuple behind", ONE_BY_ONE, "stage 1 depends on Job.loss.held, which"),
        proof("deque behind", ONE_BY_ONE, "stage 1 depends on Job.loss.held, which"),
        proof("array of one behind", ONE_BY_ONE, "stage 1 depends on Job.loss.held, which"),
        proof("dictionary behind", ONE_BY_ONE, "stage 1 depends on Job.loss.held, which"),
        ("excited", ONE_BY_ONE, "moves model.excited, itself or in its model, in some calls"),
        proof("phases", ONE_BY_ONE, "an iterator is held as Job.loss.phases"),
        proof("scheduled", ONE_BY_ONE, "stage 1 depends on Job.loss.step, which"),
        proof("of a function", ONE_BY_ONE, "stage 1 depends on Job.loss, Job.loss.calls, which"),
        ("nothing at first", ONE_BY_ONE, "stage 1 depends on Job.loss.held, which"),
        proof("cached", INTERLEAVED, "itself or in its model, in some calls and not in the first ones: a process with"),
        proof("alternating", INTERLEAVED, "does not follow from what blocks.0 is given in a second call"),
        proof("hooked backward", ONE_BY_ONE, "blocks.2 has a backward hook, and begins a stage"),
    ],
    ids=str,
)
def test_what_stages_would_do_otherwise_is_refused_by_name(name, options, reason, tmp_path):
    for found in on_ranks(2, tmp_path, trained, name, {"pipeline": (2, options)}):
        assert reason in found["told"]


def test_a_loss_that_counts_has_counted_nothing_when_layers_are_divided(tmp_path):
    wanted = trained("warming", {})
    for found in on_ranks(2, tmp_path, trained, "warming", {"tensor": 2}):
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
