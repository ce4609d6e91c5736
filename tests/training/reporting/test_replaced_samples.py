"""Samples that were replaced, told once whatever becomes of the run, and counted over a resume."""

from itertools import count

import pytest
import torch
from torch.nn import functional
from torch.utils.data import Dataset

from hasten.entry import prepare, train
from hasten.errors import DataFailed
from hasten.facts.events import Noticed
from hasten.training.loop import train_run
from support import small_job
from support.training.collected_events import Collected


class PartlyDamaged(Dataset):
    def __init__(self, *bad):
        self.bad = bad or (5, 700)

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError(f"cannot read file {index}")
        return torch.randn(6), index % 3


def replacing_job(*bad, **changes):
    fields = {"train": PartlyDamaged(*bad), "batch_size": 500, "epochs": 2, "log_every": 1}
    return small_job(on_bad_sample="replace", **(fields | changes))


def told_in(events):
    return [event.text for event in events if isinstance(event, Noticed) and "cannot be read" in event.text]


def bad_ones(events):
    return sorted(line.split()[1] for line in told_in(events))


def test_samples_that_are_replaced_are_told_once_and_training_goes_on():
    collected = Collected()
    result = train(replacing_job(epochs=3), receivers=[collected])
    assert bad_ones(collected.events) == ["5", "700"]
    told = told_in(collected.events)
    assert all("is replaced by sample" in line and "OSError: cannot read file" in line for line in told)
    assert (result.steps, result.reason) == (12, "the planned run is complete")


def state_after_an_epoch(job, told):
    with prepare(job) as run:
        for batch in run.epoch_batches():
            run.step(batch)
        if told:
            assert len(run.loader.replaced()) == 2
        return run.state_dict()


def events_from(state, job):
    collected = Collected()
    with prepare(job) as run:
        run.load_state_dict(state)
        train_run(run, collected)
    return collected.events


def test_after_a_resume_no_replaced_sample_is_told_again_and_none_is_left_untold():
    assert bad_ones(events_from(state_after_an_epoch(replacing_job(), told=True), replacing_job())) == []
    assert bad_ones(events_from(state_after_an_epoch(replacing_job(), told=False), replacing_job())) == ["5", "700"]


def test_the_limit_cannot_be_passed_by_resuming():
    state = state_after_an_epoch(replacing_job(), told=True)
    with pytest.raises(DataFailed, match="3 of 2000 samples could not be read"):
        events_from(state, replacing_job(9))


def failing_job(**changes):
    calls = count(1)

    def loss(model, batch):
        if next(calls) == 5:
            raise ValueError("five")
        return functional.cross_entropy(model(batch[0]), batch[1])

    return replacing_job(**({"loss": loss, "log_every": 1000} | changes))


def test_a_run_that_fails_for_another_reason_tells_what_it_replaced():
    collected = Collected()
    with pytest.raises(ValueError, match="five"):
        train(failing_job(), receivers=[collected])
    assert bad_ones(collected.events) == ["5", "700"]


class FullAtNotices(Collected):
    def log(self, event):
        if isinstance(event, Noticed):
            raise OSError("disk full")
        super().log(event)


@pytest.mark.parametrize(("job", "error"), [(failing_job, "five"), (replacing_job, "disk full")])
def test_what_no_receiver_takes_any_more_is_told_with_the_error(job, error):
    with pytest.raises((ValueError, OSError), match=error) as stop, prepare(job(log_every=1000)) as run:
        train_run(run, FullAtNotices())
    notes = "\n".join(stop.value.__notes__)
    assert "OSError: disk full" in notes
    assert notes.count("cannot be read and is replaced by sample") == 2
    assert "sample 5 of train" in notes
    assert "sample 700 of train" in notes


def test_a_technique_that_looks_at_a_batch_sees_one_in_which_they_are_replaced():
    with prepare(replacing_job(batch_size=2000)) as run:
        inputs, _ = run.setup.sample
    assert inputs.shape == (2000, 6)
