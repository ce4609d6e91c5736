"""Public reports of loaders that repeated, skipped or did not shuffle samples."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

import hasten
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
    """ant-research/EasyTemporalPointProcess#54, goodfire-ai/spd#104"""
    epochs = by_epoch(samples_of_steps(tmp_path / "run", epochs=3), 3)
    assert len({tuple(each) for each in [*epochs, range(12)]}) == 4
    assert all(sorted(each) == list(range(12)) for each in epochs)


def test_workers_of_a_stream_that_nobody_divides_repeat_no_sample(tmp_path):
    """huggingface/nanoVLM#203"""
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
