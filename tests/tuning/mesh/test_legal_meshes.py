"""Meshes of devices on paper: which are legal, and what each costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.errors import Misconfigured
from hasten.facts.choice import Choice
from hasten.facts.mesh import Amount, Cluster, Mesh, MeshCost, ModelNeeds, Part, Sharding
from hasten.techniques.combinations import conflicts
from hasten.tuning.mesh.legal_meshes import choices_of, meshes, planned_meshes, why_illegal
from hasten.tuning.mesh.mesh_cost import cost_of, memory_of, sent_of

GB = 10**9
MESH_OF_ONE = Mesh(data=1, tensor=1, pipeline=1)
amounts = st.builds(Amount, st.integers(0, 10**6), st.integers(0, 10**6))
sizes = st.sampled_from([1, 2, 3, 4, 8])


def part(name: str, **changes: Amount) -> Part:
    weights = Amount(20.0, 80.0)
    fields = {"weights": weights, "gradients": weights, "state": Amount(40.0, 160.0), "unit": weights}
    return Part(name=name, **(fields | {"per_sample": Amount(2.0, 6.0), "summed": Amount(4.0)} | changes))


def made_needs(**changes: object) -> ModelNeeds:
    around = part(
        "", root=Amount(50.0), weights=Amount(50.0), gradients=Amount(50.0), state=Amount(100.0), unit=Amount()
    )
    fields = {
        "parameters": 1000,
        "batch_size": 64,
        "around": replace(around, summed=Amount()),
        "blocks": tuple(part(f"blocks.{each}") for each in range(8)),
        "divisible": (("blocks.0.heads", 8), ("blocks.0.in_features", 64)),
        "border_bytes": 3.0,
        "buffer_bytes": 5,
        "short_weights": False,
        "flops_per_sample": 1e9,
        "how": "shapes only",
    }
    return ModelNeeds(**(fields | changes))  # type: ignore[arg-type]


NEEDS = made_needs()


def _with_root_among_weights(part: Part) -> Part:
    """What is gathered with the root is a part of the weights."""
    root, weights = part.root, part.weights
    least = Amount(whole=min(root.whole, weights.whole), divided=min(root.divided, weights.divided))
    return replace(part, root=least)


parts = st.builds(
    Part,
    name=st.just("block"),
    weights=amounts,
    gradients=amounts,
    state=amounts,
    root=amounts,
    unit=amounts,
    fixed=amounts,
    per_sample=amounts,
    recomputed=amounts,
    summed=amounts,
).map(_with_root_among_weights)
any_needs = st.builds(
    lambda around, blocks: made_needs(around=around, blocks=tuple(blocks)), parts, st.lists(parts, max_size=9)
)


def cost(mesh: Mesh, needs: ModelNeeds = NEEDS, microbatch_size: int = 2) -> MeshCost:
    cluster = Cluster(devices=mesh.devices, memory_bytes=1e9, bytes_per_second=1e3)
    return cost_of(mesh, needs, cluster, microbatch_size)


@settings(max_examples=15)
@given(st.integers(1, 200))
def test_the_product_of_a_meshs_dimensions_is_the_number_of_devices(devices):
    found = [*meshes(devices)]
    assert {each.devices for each in found} == {devices}
    assert len({*found}) == len(found)
    triples = {(each.data, each.tensor, each.pipeline) for each in found}
    assert len(triples) == sum(
        devices % (data * tensor) == 0 for data in range(1, devices + 1) for tensor in range(1, devices // data + 1)
    )


@settings(max_examples=15)
@given(any_needs, sizes, st.sampled_from([*Sharding][1:]), st.integers(1, 8))
def test_more_parts_never_need_more_memory(needs, data, shard, samples):
    fewer, more = (
        memory_of(Mesh(data=each, tensor=1, pipeline=1, shard=shard), needs, samples, 2) for each in (data, 2 * data)
    )
    assert more.total <= fewer.total


@settings(max_examples=15)
@given(any_needs, st.integers(1, 8))
def test_a_mesh_of_one_is_the_single_process(needs, samples):
    every = (needs.around, *needs.blocks)
    memory = memory_of(MESH_OF_ONE, needs, samples, 1)
    assert memory.weights == sum(each.weights.total for each in every) + needs.buffer_bytes
    assert memory.gradients == sum(each.gradients.total for each in every)
    assert memory.state == sum(each.state.total for each in every)
    kept = sum(each.fixed.total + samples * each.per_sample.total for each in every)
    assert memory.activations == kept + samples * max(each.recomputed.total for each in every)
    assert (memory.gathered, memory.buckets) == (0, 0)
    assert sent_of(MESH_OF_ONE, needs, samples, 1) == {}


def test_replicas_sum_their_gradients_once_a_step_from_buckets_as_large():
    found = cost(Mesh(data=4, tensor=1, pipeline=1))
    assert found.sent == {"summed gradients": pytest.approx(2 * 3 / 4 * 850)}
    assert found.memory.buckets == found.memory.gradients == 850


def test_parts_are_gathered_in_every_pass_and_twice_by_zero3():
    two, three = (cost(Mesh(data=4, tensor=1, pipeline=1, shard=each)) for each in (Sharding.ZERO2, Sharding.ZERO3))
    passes = 64 // 4 // 2
    assert two.sent["gathered weights"] == pytest.approx(3 / 4 * 850 * passes)
    assert three.sent["gathered weights"] == pytest.approx(3 / 4 * (850 + 800) * passes)
    assert two.sent["scattered gradients"] == three.sent["scattered gradients"] == pytest.approx(3 / 4 * 850 * passes)


def test_tensor_ranks_sum_activations_and_nothing_else():
    found = cost(Mesh(data=1, tensor=2, pipeline=1))
    assert found.sent == {"summed activations": pytest.approx(2 * 1 / 2 * 8 * 4 * 64)}
    assert found.memory.weights == 50 + 8 * (20 + 80 / 2) + 5


@pytest.mark.parametrize(("stages", "neighbours"), [(2, 1), (4, 2)])
def test_stages_pass_activations_on_and_sum_the_gradients_of_what_all_hold(stages, neighbours):
    assert cost(Mesh(data=1, tensor=1, pipeline=stages)).sent == {
        "passed activations": neighbours * 3 * 64,
        "summed gradients around the blocks": pytest.approx(2 * (stages - 1) / stages * 50),
    }


def test_a_pipeline_keeps_as_many_microbatches_as_it_has_stages_and_idles_meanwhile():
    found = cost(Mesh(data=1, tensor=1, pipeline=4))
    assert found.bubble == 3 / (32 + 3)
    assert found.memory.activations == 4 * 2 * (2 * 8) + 2 * 8  # microbatches, blocks, bytes; once what lies around
    assert cost(Mesh(data=1, tensor=1, pipeline=4), microbatch_size=64).bubble == 3 / 4


@pytest.mark.parametrize(
    ("mesh", "changes", "reason"),
    [
        (Mesh(data=48, tensor=1, pipeline=1), {}, "a batch of 64 cannot be divided over data: 64 = 1 × 48 + 16"),
        (Mesh(data=1, tensor=1, pipeline=9), {}, "9 stages of a pipeline need as many blocks, and the model repeats 8"),
        (Mesh(data=1, tensor=1, pipeline=2), {"blocks": ()}, "and the model repeats 0"),
        (Mesh(data=1, tensor=2, pipeline=1), {"divisible": ()}, "no layer that is known to be divisible"),
        (Mesh(data=1, tensor=16, pipeline=1), {}, "16 devices communicate in every layer, but a machine has 8"),
        (
            Mesh(data=4, tensor=3, pipeline=1),
            {},
            "groups that communicate in every layer would span machines: 8 = 2 × 3 + 2",
        ),
        (
            Mesh(data=1, tensor=8, pipeline=1),
            {"divisible": (("blocks.0.heads", 12),)},
            "blocks.0.heads = 12 cannot be divided over tensor: 12 = 1 × 8 + 4",
        ),
        (Mesh(data=2, tensor=1, pipeline=1), {"short_weights": True}, "16-bit weights are not trained over several"),
    ],
)
def test_an_illegal_mesh_is_refused_with_the_arithmetic(mesh, changes, reason):
    assert reason in (why_illegal(mesh, made_needs(**changes), per_machine=8) or "it is legal")


def cluster(memory_bytes: float, devices: int = 8) -> Cluster:
    return Cluster(devices=devices, memory_bytes=memory_bytes, bytes_per_second=GB)


def test_meshes_that_fit_come_first_and_the_fastest_of_them_leads():
    found = planned_meshes(NEEDS, cluster(2000))
    assert {each.fits for each in found.legal} == {True, False}
    assert [each.fits for each in found.legal] == sorted((each.fits for each in found.legal), reverse=True)
    fitting = [each.step_seconds for each in found.legal if each.fits]
    assert fitting == sorted(fitting)
    assert len(found.legal) + len(found.illegal) == len([*meshes(8)])


@pytest.mark.parametrize(
    ("mesh", "microbatch_size", "entries"),
    [
        (MESH_OF_ONE, 64, {}),
        (Mesh(data=2, tensor=1, pipeline=1), 8, {"microbatch": 8}),
        (Mesh(data=2, tensor=4, pipeline=1, shard=Sharding.ZERO3), 32, {"shard": "zero3", "tensor": 4}),
        (Mesh(data=2, tensor=1, pipeline=4), 8, {"pipeline": 4, "microbatches": 4}),
    ],
)
def test_a_mesh_is_written_as_entries_of_a_plan(mesh, microbatch_size, entries):
    found = choices_of(cost(mesh, microbatch_size=microbatch_size))
    said = {each.technique: each.value for each in found} | {
        key: value for each in found for key, value in each.options.items()
    }
    assert said == entries


def test_the_best_has_stages_only_where_no_mesh_without_them_fits():
    found = planned_meshes(NEEDS, cluster(GB))
    assert found.best is next(each for each in found.legal if each.mesh.pipeline == 1)
    assert found.choices == choices_of(found.best)
    smallest = min(found.legal, key=lambda each: each.memory.total)
    assert smallest.mesh.pipeline > 1
    tight = planned_meshes(NEEDS, cluster(smallest.memory.total / 0.9 + 1))
    assert tight.best is not None
    assert tight.best.mesh.pipeline > 1
    assert planned_meshes(NEEDS, cluster(1)).best is None
    assert planned_meshes(NEEDS, cluster(1)).choices == ()


def test_what_a_plan_cannot_say_together_is_no_mesh():
    compiled = Choice(technique="compile", value="default")
    found = planned_meshes(NEEDS, cluster(GB), beside=[compiled])
    assert not [each for each in found.legal if each.mesh.pipeline > 1 or each.mesh.tensor > 1]
    reasons = {str(each.mesh): each.reason for each in found.illegal}
    told = "a traced model cannot be interrupted in the middle of its forward pass"
    assert told in reasons["data 4 × tensor 1 × pipeline 2"]
    for each in found.legal:
        assert conflicts([*choices_of(each), compiled]) == []


def test_devices_that_fill_no_machine_are_refused_with_the_arithmetic():
    with pytest.raises(Misconfigured, match="12 devices do not fill whole machines: 12 = 1 × 8 \\+ 4"):
        planned_meshes(NEEDS, cluster(GB, devices=12))
    assert planned_meshes(NEEDS, cluster(GB, devices=4)).legal
