"""A prepared run: the loop of one's own, and what it refuses."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import hasten
from hasten.entry import prepare
from hasten.errors import JobError, Misconfigured
from hasten.facts.plan import make_plan
from hasten.training.step_parts.supervised import supervised
from support import small_job


def test_a_run_without_a_plan_is_a_plain_loop_to_the_bit():
    train = small_job().train
    job = small_job(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
        loss=supervised(functional.cross_entropy),
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-2),
        valid=train,
        batch_size=7,
        epochs=3,
        clip_norm=0.5,
    )
    with prepare(job) as run:
        model = copy.deepcopy(run.model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        while not run.finished:
            for batch in run.epoch_batches():
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(batch[0]), batch[1])
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                assert run.step(batch).item() == loss.item()
        assert all(map(torch.equal, model.state_dict().values(), run.model.state_dict().values()))
        with torch.inference_mode():
            valid = functional.cross_entropy(model.eval()(train[0]), train[1]).item()
        assert run.evaluate().results["loss"] == pytest.approx(valid, rel=1e-6)


def closed(run):
    for batch in run.batches():
        run.step(batch)
        yield batch


@pytest.mark.trap(31)
def test_a_module_that_the_job_froze_stays_frozen():
    def frozen():
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        model[1].eval()
        return model

    with prepare(small_job(model=frozen, valid=small_job().train)) as run:
        before = run.model[1].running_mean.clone()
        list(closed(run))
        run.evaluate()
        assert not run.model[1].training
        assert torch.equal(before, run.model[1].running_mean)


@pytest.mark.trap(30)
def test_batch_norm_under_accumulation_is_not_the_large_batch_and_that_is_said():
    model = lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))  # noqa: E731
    with prepare(small_job(model=model), make_plan(accumulation=4)) as run:
        assert any("batch norm" in notice.lower() for notice in run.notices), run.notices
        batch = next(iter(run.batches()))
        run.step(batch)
        assert run.model[1].num_batches_tracked == 1


@pytest.mark.parametrize("device", ["banana", "cuda:99", 3.5])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(JobError) as refusal:
        prepare(small_job(device=device))
    assert refusal.value.field == "device"


def test_a_model_whose_sizes_are_not_known_yet_is_refused_and_told_to_run_forward_once():
    job = small_job(model=lambda: nn.Sequential(nn.Linear(6, 3), nn.LazyLinear(3)))
    with pytest.raises(JobError, match=r"Job\.model.*1\.weight") as raised:
        hasten.prepare(job)
    assert "run one forward in Job.model" in raised.value.fix


def test_a_module_that_an_earlier_run_trained_is_refused():
    model = nn.Linear(6, 3)
    prepare(small_job(model=lambda: model)).close()
    with pytest.raises(JobError, match="same module") as refusal:
        prepare(small_job(model=lambda: model))
    assert refusal.value.field == "model"


def test_one_of_several_processes_that_did_not_join_is_refused(monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Misconfigured, match="one of 2 processes"):
        prepare(small_job())


@pytest.mark.trap(43)
@pytest.mark.fault("iterable without a length")
def test_data_without_a_length_asks_for_max_steps():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([(torch.randn(6), 1)] * 20)

    with pytest.raises(JobError) as refusal:
        prepare(small_job(train=Stream()))
    assert refusal.value.field == "max_steps"
    with prepare(small_job(train=Stream(), epochs=None, max_steps=7)) as run:
        assert sum(1 for _ in closed(run)) == 7


@pytest.mark.trap(34)
def test_saved_weights_fit_the_jobs_own_model_whatever_the_plan_did():
    def model():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))

    images = torch.randn(24, 3, 8, 8), torch.randint(0, 3, (24,))
    job = small_job(model=model, train=images, valid=images, loss=supervised(functional.cross_entropy))
    with prepare(job, make_plan(conv_bn_bias=True, channels_last=True)) as run:
        assert "0.bias" not in run.model.state_dict()
        list(closed(run))
        wanted = run.evaluate().results["loss"]
        weights = run.weights()
    own = model()
    own.load_state_dict(weights)
    own.eval()
    assert functional.cross_entropy(own(images[0]), images[1]).item() == pytest.approx(wanted, rel=1e-5)


def test_a_window_that_was_left_in_its_middle_begins_anew():
    finals = []
    for leaves in (False, True):
        with prepare(small_job(max_steps=3, batch_size=8), make_plan(microbatch=2)) as run:
            if leaves:
                for position, batch in enumerate(run.epoch_batches()):
                    run.step(batch)
                    if position == 5:  # the second window's second microbatch
                        break
            for batch in run.batches():
                run.step(batch)
            finals.append(run.weights())
    assert all(torch.equal(finals[0][key], finals[1][key]) for key in finals[0])
