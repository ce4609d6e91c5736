from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from hasten.data.loading.batch_loader import EvaluationLoader
from hasten.data.loading.loader_options import LoaderOptions, Placement
from hasten.data.sources.job_data import source_of
from hasten.errors import UserCodeFailed
from support.data.loaders import STAYING, Drawing, columns, content, epoch_of, flat, indices, loader_of


def test_batches_that_go_to_no_accelerator_are_not_pinned_and_this_is_said():
    """Whatever the machine has: the job decides where it computes."""
    loader = loader_of(columns(4), options=LoaderOptions(pin_memory=True))
    assert loader.notices == ("pin_memory is not used: this job copies its batches to no accelerator",)
    assert [one.batch[0].is_pinned() for one in loader.epoch(0)] == [False]
    evaluation = EvaluationLoader(
        source_of(columns(4), field="valid"), batch_size=4, options=LoaderOptions(pin_memory=True), seed=0
    )
    assert evaluation.notices == loader.notices
    assert [one.batch[0].is_pinned() for one in evaluation] == [False]


@pytest.mark.gpu
def test_columns_on_the_device_are_gathered_there_whatever_the_options_say():
    rows = torch.arange(10, device="cuda")
    loader = loader_of((rows,), options=LoaderOptions(workers=2, pin_memory=True))
    assert sorted(indices(loader.epoch(0))) == list(range(10))
    assert next(loader.epoch(1)).batch[0].device == rows.device
    assert loader.notices == ("train is on the device already: loader workers and pinned memory are not used for it",)


@pytest.mark.gpu
def test_pinned_batches_are_the_same_batches():
    expected = content(epoch_of(Drawing(13)))
    for options in [LoaderOptions(pin_memory=True), LoaderOptions(workers=2, pin_memory=True)]:
        found = epoch_of(Drawing(13), options=options, placement=Placement(accelerator=True))
        assert content(found) == expected
        assert all(one.batch[1].is_pinned() for one in found)


class Pinning:
    """A batch that pins itself, which torch's documentation calls a custom batch type."""

    def __init__(self, samples):
        self.samples, self.pinned = samples, False

    def pin_memory(self):
        self.pinned = True
        return self


@pytest.mark.parametrize("options", [LoaderOptions(pin_memory=True), replace(STAYING, pin_memory=True)])
def test_batches_are_pinned_for_the_device_of_this_process(monkeypatch, options):
    """Without an accelerator: its functions are stood in for."""
    devices = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "set_device_index", devices.append)
    loader = loader_of([*range(13)], options=options, collate=Pinning, placement=Placement(accelerator=True))
    for epoch in range(2):
        found = [one.batch for one in loader.epoch(epoch)]
        assert all(batch.pinned for batch in found)
        assert sorted(sample for batch in found for sample in batch.samples) == [*range(13)]
    loader.close()
    assert set(devices) == ({3} if options.workers else set())


def fails_to_start(worker):
    raise ValueError(f"worker {worker} finds no disk")


def test_a_worker_init_fn_that_raises_is_the_users_failure_with_its_line():
    data = DataLoader(Drawing(9), batch_size=4, num_workers=1, worker_init_fn=fails_to_start)
    loader = loader_of(data, options=LoaderOptions(workers=1))
    with pytest.raises(
        UserCodeFailed, match=r"worker_init_fn of Job\.train failed in loader worker 0: ValueError"
    ) as told:
        list(loader.epoch(0))
    assert told.value.exit_code == 10
    assert "in fails_to_start" in told.value.where
    assert isinstance(told.value.__cause__, ValueError)
    loader.close()


class Informed(Drawing):
    def __getitem__(self, index):
        info = get_worker_info()
        assert info is not None
        return info.id, info.num_workers, info.seed, info.dataset.count


def test_a_data_set_sees_in_which_worker_it_is():
    found = [row for one in epoch_of(Informed(16), options=STAYING) for row in zip(*flat(one.batch), strict=True)]
    assert {(number, workers, count) for number, workers, _, count in found} == {(0, 2, 16), (1, 2, 16)}
    assert len({seed for _, _, seed, _ in found}) == 2


THREADS = LoaderOptions(workers=2, worker_kind="threads")


def test_what_may_draw_is_read_by_processes_instead_and_this_is_said():
    loader = loader_of(Drawing(13), options=THREADS)
    assert content(loader.epoch(0)) == content(epoch_of(Drawing(13)))
    assert len(loader.notices) == 1
    assert "read by 2 worker processes instead of threads: its samples may draw" in loader.notices[0]
    loader.close()
