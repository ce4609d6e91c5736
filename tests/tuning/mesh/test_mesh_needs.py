"""What a job needs of devices: counted and measured on shapes, and what two real ranks then hold."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import flop_counter

from hasten.errors import Misconfigured
from hasten.facts.job import Loss
from hasten.facts.mesh import Mesh, Sharding
from hasten.facts.plan import make_plan
from hasten.tuning.mesh import mesh_needs
from hasten.tuning.mesh.mesh_cost import memory_of, sent_of
from hasten.tuning.mesh.mesh_needs import ON_SHAPES, needs_of
from support.ranks.process_group import on_ranks
from support.tune.mesh_jobs import (
    BATCH,
    HEADS,
    LENGTH,
    WORDS,
    allocated_by_a_rank,
    allocated_by_a_stage,
    held_by_a_rank,
    loss,
    mesh_job,
)

FLOAT = 4  # bytes
HELD = "weights", "gradients", "state", "activations"
WAYS = (
    (Mesh(data=2, tensor=1, pipeline=1), {}),
    (Mesh(data=2, tensor=1, pipeline=1, shard=Sharding.ZERO2), {"shard": "zero2"}),
    (Mesh(data=2, tensor=1, pipeline=1, shard=Sharding.ZERO3), {"shard": "zero3"}),
    (Mesh(data=1, tensor=2, pipeline=1), {"tensor": 2}),
)


def on_two_ranks(tmp_path, held: Callable[..., Any], of: dict[str, Any], ways: Any = WAYS):
    """For each way to divide the job: what was predicted, and what each rank held in two passes a step."""
    needs = needs_of(mesh_job(**of))
    passes = [BATCH // mesh.data // 2 for mesh, _ in ways]
    plans = [choices | {"microbatch": size} for (_, choices), size in zip(ways, passes, strict=True)]
    ranks = on_ranks(2, tmp_path, held, plans, of)
    for number, ((mesh, _), size) in enumerate(zip(ways, passes, strict=True)):
        yield mesh, memory_of(mesh, needs, size, 2), [rank[number] for rank in ranks]


@pytest.mark.proof
def test_two_ranks_hold_and_sum_what_was_predicted(tmp_path):
    of = {"width": 64, "layers": 2}
    for mesh, predicted, ranks in on_two_ranks(tmp_path, held_by_a_rank, of, WAYS[2:]):
        for held in ranks:
            for kind in HELD:
                assert asdict(predicted)[kind] == pytest.approx(held[kind], rel=0.05), (str(mesh), kind)
            if mesh.tensor == 2:
                sent = sent_of(mesh, needs_of(mesh_job(**of)), BATCH, 2)
                assert sent == {"summed activations": pytest.approx(held["summed"], rel=0.05)}


@pytest.mark.proof
@pytest.mark.parametrize("model", ["gpt", "encoder"])
def test_the_memory_of_two_ranks_is_as_predicted_within_15_percent(model, tmp_path):
    """That of tensors of each kind, and all that a process has asked its allocator for."""
    of = {"model": model, "width": 384, "layers": 4}
    for _, predicted, ranks in on_two_ranks(tmp_path, allocated_by_a_rank, of):
        for held in ranks:
            tensors, allocated = sum(held[kind] for kind in HELD), held["peak"]
            of_tensors = sum(asdict(predicted)[kind] for kind in HELD)
            assert of_tensors == pytest.approx(tensors, rel=0.15)
            assert predicted.total == pytest.approx(allocated, rel=0.15)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("mesh", "beside"),
    [
        (Mesh(data=1, tensor=1, pipeline=2), {}),
        (Mesh(data=2, tensor=1, pipeline=2), {}),
        (Mesh(data=2, tensor=1, pipeline=2, shard=Sharding.ZERO3), {"shard": "zero3"}),
        (Mesh(data=1, tensor=2, pipeline=2), {"tensor": 2}),
    ],
    ids=str,
)
def test_the_memory_of_the_largest_stage_is_as_predicted_within_15_percent(mesh, beside, tmp_path):
    of = {"width": 384, "layers": 4}
    plan = {"pipeline": (2, {"microbatches": 4, "before": ["blocks.2"]}), **beside}
    predicted = memory_of(mesh, needs_of(mesh_job(**of)), BATCH // mesh.data // 4, 4)
    found = on_ranks(mesh.data * mesh.tensor * mesh.pipeline, tmp_path, allocated_by_a_stage, plan, of)
    assert predicted.total == pytest.approx(max(peak for (peak,) in found), rel=0.15)


def test_on_shapes_alone_a_job_needs_what_it_needs_with_numbers(monkeypatch):
    on_shapes = needs_of(mesh_job())
    monkeypatch.setattr(mesh_needs, "FakeTensorMode", no_mode)
    assert on_shapes.how == ON_SHAPES
    assert needs_of(mesh_job()) == on_shapes


def no_mode(**options: object) -> nullcontext[None]:
    return nullcontext()


def test_a_model_whose_arithmetic_cannot_be_counted_is_refused(monkeypatch):
    def refuse(*given: Any, **named: Any) -> int:
        raise NotImplementedError("of no known shape")

    monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.addmm, refuse)
    with pytest.raises(Misconfigured, match=r"FLOP counter fails on it .*of no known shape"):
        needs_of(mesh_job())


def test_parameters_are_counted_where_they_lie():
    needs, width = needs_of(mesh_job(width=64, layers=3)), 64
    norms, rows_biases = 4 * width, 2 * width
    assert [each.name for each in needs.blocks] == ["blocks.0", "blocks.1", "blocks.2"]
    assert needs.parameters == 3 * (12 * width**2 + 13 * width) + 2 * WORDS * width + WORDS
    for block in needs.blocks:
        assert block.weights.divided == FLOAT * (12 * width**2 + 7 * width)
        assert block.weights.whole == FLOAT * (norms + rows_biases)
        assert (block.root.total, block.unit) == (0, block.weights)
    assert needs.around.root == needs.around.weights


def test_activations_are_measured_by_the_sample_and_by_what_is_divided():
    needs, width, positions = needs_of(mesh_job(width=64, layers=2)), 64, FLOAT * LENGTH
    for block in needs.blocks:
        assert block.fixed.total == 0
        # Queries, keys, values, what is attended, and the perceptron's hidden layer before and behind its activation;
        # of attention's softmax its sums.
        assert block.per_sample.divided == positions * (3 * width + width + 2 * 4 * width + HEADS)
        assert block.summed.total == 4 * positions * width
    assert needs.border_bytes == positions * width


@pytest.mark.proof
def test_with_bf16_activations_take_less_and_weights_the_same():
    plain, short = needs_of(mesh_job()), needs_of(mesh_job(), make_plan(precision="bf16"))
    assert short.around.weights == plain.around.weights
    assert short.blocks[0].per_sample.total < 0.7 * plain.blocks[0].per_sample.total
    assert short.blocks[0].fixed.divided > 0  # weights in 16 bits


@pytest.mark.proof
def test_a_block_that_computes_again_keeps_its_input_and_has_the_rest_for_a_while():
    plain, again = needs_of(mesh_job()), needs_of(mesh_job(), make_plan(activation_checkpointing="blocks"))
    for before, after in zip(plain.blocks, again.blocks, strict=True):
        assert after.per_sample.total == again.border_bytes
        assert after.per_sample.total + after.recomputed.total == pytest.approx(before.per_sample.total)


def looking_at_numbers(model: nn.Module, batch: Any) -> Loss:
    found = loss(model, batch)
    assert found.total.item() > 0
    return found


def test_a_loss_that_looks_at_numbers_is_measured_on_this_host_and_that_is_said():
    needs = needs_of(mesh_job(loss=looking_at_numbers))
    assert needs.how.startswith("on this host, as shapes alone do not do: ")
    assert replace(needs, how=ON_SHAPES) == needs_of(mesh_job())
