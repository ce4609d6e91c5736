"""Public reports of loaders that repeated, skipped or did not shuffle samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler, Subset

import hasten
from hasten.errors import DataFailed, JobError
from support import small_job
from support.training.reported_runs import IN_ORDER, Numbers, Stream, assert_weights, flat, samples_of_steps, trained


def by_epoch(steps, epochs):
    """The samples of each epoch."""
    each = len(steps) // epochs
    return [flat(steps[number * each : (number + 1) * each]) for number in range(epochs)]


class Drawn(Numbers):
    """Each sample is a draw of torch.distributions, as an augmentation's."""

    def __getitem__(self, index):
        return torch.distributions.Uniform(0.0, 1e6).sample((1,)).round()


def test_an_augmentation_in_workers_draws_anew_in_each_epoch(tmp_path):
    """Lightning-AI/pytorch-lightning#20412"""
    loader = DataLoader(Drawn(12), batch_size=4, num_workers=2)
    still = {"optimizer": lambda params: torch.optim.SGD(params, lr=0.0)}
    steps = samples_of_steps(tmp_path / "run", train=loader, batch_size=None, **still)
    assert len(set(flat(steps))) == 24


def test_each_epoch_is_shuffled_by_itself(tmp_path):
    """ant-research/EasyTemporalPointProcess#54, goodfire-ai/spd#104, EleutherAI/bergson#352"""
    epochs = by_epoch(samples_of_steps(tmp_path / "run", epochs=3), 3)
    assert len({tuple(each) for each in [*epochs, range(12)]}) == 4
    assert all(sorted(each) == list(range(12)) for each in epochs)


def test_workers_of_a_stream_that_nobody_divides_repeat_no_sample(tmp_path):
    """huggingface/nanoVLM#203, huggingface/finetrainers#415"""
    loader = DataLoader(Stream(12), batch_size=4, num_workers=2)
    steps = samples_of_steps(tmp_path / "run", train=loader, batch_size=None, max_steps=3)
    assert flat(steps) == list(range(12))


def test_epochs_after_a_resumed_one_are_whole_with_persistent_workers(tmp_path):
    """huggingface/datasets#7447"""
    loader = DataLoader(Stream(12), batch_size=4, num_workers=1, persistent_workers=True)
    steps = samples_of_steps(tmp_path / "run", cuts=(2,), train=loader, batch_size=None, epochs=None, max_steps=9)
    assert by_epoch(steps, 3) == [list(range(12))] * 3


def test_a_run_that_is_resumed_at_the_end_of_an_epoch_has_the_next_order(tmp_path):
    """meta-pytorch/data#1437"""
    loader = {"train": DataLoader(Numbers(12), batch_size=4, shuffle=True, num_workers=1), "batch_size": None}
    cut = samples_of_steps(tmp_path / "cut", cuts=(3, 6), epochs=3, **loader)
    assert cut == samples_of_steps(tmp_path / "whole", epochs=3, **loader)


def test_what_workers_have_read_ahead_is_not_lost_in_an_interruption(tmp_path):
    """meta-pytorch/data#1520"""
    loader = {"train": DataLoader(Stream(24), batch_size=2, num_workers=1, prefetch_factor=4), "batch_size": None}
    assert flat(samples_of_steps(tmp_path / "run", cuts=(3, 5), max_steps=12, **loader)) == list(range(24))


def test_the_last_window_of_fewer_microbatches_weighs_its_samples():
    """huggingface/transformers#38837, ml-explore/mlx-lm#1413"""
    rows, labels = (each[:36] for each in small_job().train)
    changes = IN_ORDER | {"train": (rows, labels), "batch_size": 16}
    whole, parts = (trained(plan, **changes)[0] for plan in (None, hasten.make_plan(microbatch=3)))
    assert whole.steps == parts.steps == 6
    assert_weights(parts.weights, whole.weights)


class Shuffling(Stream):
    """Shuffles by the epoch that it is set to, as streams of the library datasets do."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch))
        return (torch.tensor([float(number)]) for number in order)


LOADERS = [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}]


@pytest.mark.parametrize("options", LOADERS, ids=["here", "workers", "persistent workers"])
def test_a_stream_is_told_its_epoch(options, tmp_path):
    """huggingface/datasets#6673, modelscope/ms-swift#9902"""
    job = {"train": DataLoader(Shuffling(12), batch_size=4, **options), "batch_size": None, "epochs": None}
    steps = samples_of_steps(tmp_path / "run", cuts=(4,), max_steps=9, **job)
    orders = [torch.randperm(12, generator=torch.Generator().manual_seed(epoch)).tolist() for epoch in range(3)]
    assert by_epoch(steps, 3) == orders


def test_a_data_set_with_an_index_is_told_its_epoch(tmp_path):
    """huggingface/trl#6351"""

    class Growing(Numbers):
        epoch = 7

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __getitem__(self, index):
            return torch.tensor([float(100 * self.epoch + index)])

    steps = samples_of_steps(tmp_path / "run", train=Subset(Growing(12), range(12)), shuffle=False, cuts=(4,))
    assert flat(steps) == [*range(12), *range(100, 112)]


@pytest.mark.xfail(
    strict=True, reason="that a stream counts its passes itself is not seen; set_epoch(epoch) is the way"
)
def test_a_stream_that_counts_its_passes_goes_on_with_the_same_one(tmp_path):
    """pytorch/torchtitan#2864, for a stream"""

    class Counting(Shuffling):
        set_epoch = None

        def __iter__(self):
            self.epoch += 1
            return super().__iter__()

    made = {"batch_size": None, "epochs": None, "max_steps": 9}
    steps = samples_of_steps(tmp_path / "run", cuts=(4,), fresh=lambda: {"train": DataLoader(Counting(12), 4)}, **made)
    assert all(sorted(each) == list(range(12)) for each in by_epoch(steps, 3))


class Reshuffling(Sampler):
    """Shuffles the order of the epoch before, by a generator of its own."""

    def __init__(self):
        self.order, self.numpys = list(range(12)), np.random.default_rng(0)

    def __len__(self):
        return 12

    def __iter__(self):
        self.numpys.shuffle(self.order)
        return iter(list(self.order))


def test_a_sampler_that_shuffles_the_order_before_is_refused_as_no_run_could_resume(tmp_path):
    """pytorch/torchtitan#2864"""
    loader = DataLoader(Numbers(12), 4, sampler=Reshuffling())
    with pytest.raises(DataFailed, match="draws something else when epoch 1 is drawn again"):
        samples_of_steps(tmp_path / "run", train=loader, batch_size=None)


def test_fewer_samples_than_a_batch_are_refused_where_the_last_batch_is_dropped(tmp_path):
    """dreamquark-ai/tabnet#537"""
    with pytest.raises(JobError, match="has 3 samples, and a batch holds 4: with drop_last that is 0 batches"):
        samples_of_steps(tmp_path / "run", train=Numbers(3), drop_last=True)


def test_a_batch_sampler_of_nobodys_class_decides_the_batches(tmp_path):
    """Lightning-AI/pytorch-lightning#20272 and #19371"""
    batches = [[0, 3], [1], [2, 4, 5]]
    loader = DataLoader(Numbers(6), batch_sampler=batches)
    assert samples_of_steps(tmp_path / "run", cuts=(1, 4), train=loader, batch_size=None) == batches * 2
