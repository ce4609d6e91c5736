"""Loader workers, prefetching, persistent workers and pinned memory: what is proposed where, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hasten.data.loading.loader_options import LoaderOptions
from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.techniques import loader_workers, persistent_workers, pin_memory, prefetch
from hasten.techniques.combinations import conflicts
from hasten.techniques.contract import No, Yes
from support import laptop, setup_of
from support.data.loaders import Drawing, DrawingStream

GIB, MIB = 1 << 30, 1 << 20
ROWS = (torch.zeros(16, 6), torch.zeros(16, dtype=torch.long))
SAMPLES = [(torch.zeros(6), 0)] * 16  # a list cannot draw: threads may read it
SAMPLE = (torch.zeros(MIB, dtype=torch.uint8), torch.zeros(8))


def setup_with(train, *, workers=0, machine=None, **changes):
    batch_size = None if isinstance(train, DataLoader) else 4
    setup = setup_of(nn.Linear(6, 3), SAMPLE, machine or laptop(cores=4), train=train, batch_size=batch_size)
    setup.loader = LoaderOptions(workers=workers, **changes)
    return setup


def answer(technique, setup):
    return technique.TECHNIQUE.applies(setup)


def offered(technique, setup):
    assert isinstance(answer(technique, setup), Yes)
    choices = technique.TECHNIQUE.candidates(setup)
    assert all(choice.preserves is Preserves.BITS for choice in choices)
    return [(choice.value, choice.options.get("kind")) for choice in choices]


def applied(technique, setup, value, **options):
    choice = Choice(technique=technique.TECHNIQUE.name, value=value, options=options)
    technique.TECHNIQUE.apply(setup, choice)
    return setup.loader


def refusal(technique, setup):
    found = answer(technique, setup)
    assert isinstance(found, No)
    return found.reason


# ── loader_workers ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_samples_that_may_draw_are_offered_only_processes():
    assert offered(loader_workers, setup_with(Drawing(16))) == [(4, None), (2, None), (1, None), (8, None)]


def test_samples_that_cannot_draw_are_offered_threads_first():
    found = offered(loader_workers, setup_with(SAMPLES))
    assert found[:3] == [(4, "threads"), (2, "threads"), (1, "threads")]
    assert (4, None) in found


def test_a_stream_is_offered_one_worker_and_refused_more():
    assert offered(loader_workers, setup_with(DrawingStream(16))) == [(1, None)]
    with pytest.raises(PlanError, match="each of 2 workers would read all"):
        applied(loader_workers, setup_with(DrawingStream(16)), 2)


def test_as_many_workers_as_shared_memory_holds_are_offered():
    machine = laptop(cores=4, shared_memory_bytes=5 * MIB + MIB // 2)  # five batches: two workers of two, and one
    assert offered(loader_workers, setup_with(Drawing(16), machine=machine)) == [(2, None), (1, None)]


def test_no_batch_is_read_to_see_whether_it_fits_into_ample_memory():
    setup = setup_with(Drawing(16), machine=laptop(shared_memory_bytes=64 * GIB))
    setup.draw_sample = lambda setup: pytest.fail("a sample was read")
    assert offered(loader_workers, setup)


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        (setup_with(ROWS), "gathered from memory by index"),
        (setup_with(Drawing(16), in_memory="host"), "gathered from memory by index"),
        (setup_with(Drawing(16), machine=laptop(cores=1)), "only one core"),
        (setup_with(Drawing(16), machine=laptop(cores=7, ranks=4)), "4 ranks share 7 cores"),
        (setup_with(Drawing(16), machine=laptop(shared_memory_bytes=MIB)), "are too small for another number"),
    ],
)
def test_there_is_a_reason_where_no_worker_is_offered(setup, reason):
    assert reason in refusal(loader_workers, setup)


def test_zero_workers_reset_the_settings_of_the_jobs_own_loader():
    loader = DataLoader(Drawing(16), batch_size=4, num_workers=2, persistent_workers=True)
    setup = setup_with(loader)
    setup.loader = dataclasses.replace(setup.train.options)
    assert applied(loader_workers, setup, 0) == LoaderOptions()


@pytest.mark.parametrize(
    ("train", "value", "options", "said"),
    [
        (Drawing(16), 2, {"kind": "threads"}, "which threads share"),
        (Drawing(16), 2, {"kind": "fibres"}, "the plan asks for"),
        (Drawing(16), 2, {"sort": "threads"}, "the plan asks for"),
        (Drawing(16), -1, {}, "the plan asks for"),
        (Drawing(16), True, {}, "the plan asks for"),
        (Drawing(16), 65, {}, "near that of the cores here, 4"),
    ],
)
def test_workers_that_make_no_sense_are_refused(train, value, options, said):
    with pytest.raises(PlanError, match=said) as caught:
        applied(loader_workers, setup_with(train), value, **options)
    assert caught.value.where == "loader_workers"


# ── prefetch, persistent_workers ────────────────────────────────────────────────────────────────────────────────────


def test_other_numbers_of_batches_than_the_usual_one_are_offered():
    assert [value for value, _ in offered(prefetch, setup_with(Drawing(16), workers=2))] == [4, 8, 1]
    found = offered(prefetch, setup_with(Drawing(16), workers=2, prefetch_factor=4))
    assert [value for value, _ in found] == [8, 1, 2]


def test_as_many_batches_as_shared_memory_holds_are_offered():
    machine = laptop(shared_memory_bytes=11 * MIB)
    found = offered(prefetch, setup_with(Drawing(16), workers=2, machine=machine))
    assert [value for value, _ in found] == [4, 1]


@pytest.mark.parametrize("technique", [prefetch, persistent_workers])
def test_without_workers_there_is_nothing_to_set(technique):
    assert "no loader workers" in refusal(technique, setup_with(Drawing(16)))
    assert "gathered from memory" in refusal(technique, setup_with(ROWS, workers=2))


def test_worker_processes_persist_where_there_are_several_epochs():
    setup = setup_with(Drawing(16), workers=2)
    assert offered(persistent_workers, setup) == [(True, None)]
    assert applied(persistent_workers, setup, True).persistent_workers
    assert "already on" in refusal(persistent_workers, setup)
    assert "threads" in refusal(persistent_workers, setup_with(SAMPLES, workers=2, worker_kind="threads"))
    one_epoch = setup_of(nn.Linear(6, 3), SAMPLE, laptop(), train=Drawing(16), epochs=1)
    one_epoch.loader.workers = 2
    assert "one epoch" in refusal(persistent_workers, one_epoch)


@pytest.mark.parametrize(("technique", "value"), [(prefetch, 4), (persistent_workers, True)])
def test_a_plan_without_workers_cannot_set_what_only_workers_have(technique, value):
    choices = [Choice(technique="loader_workers", value=0), Choice(technique=technique.TECHNIQUE.name, value=value)]
    assert len(conflicts(choices)) == 1
    assert conflicts([dataclasses.replace(choices[0], value=1), choices[1]]) == []


# ── pin_memory ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_memory_is_pinned_only_for_a_device():
    setup = setup_with(ROWS)
    assert "not copied to a device" in refusal(pin_memory, setup)
    setup.device = torch.device("cuda")
    assert offered(pin_memory, setup) == [(True, None)]
    assert applied(pin_memory, setup, True).pin_memory
    assert "already" in refusal(pin_memory, setup)
