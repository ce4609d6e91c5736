"""Averages over layers of every kind: trained parameters and running statistics are averaged, all else is copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import hasten
from hasten.checkpoint.store import Store
from hasten.facts.saving import Saving
from hasten.training.weights.export import export_weights
from support import small_job
from support.training.resumed_state import state_in_a_file

EMA, EQUAL = hasten.ExponentialAverage(0.8), hasten.EqualAverage(0.3)
KINDS = pytest.mark.parametrize("kind", [EMA, EQUAL], ids=["exponential", "equal"])


def around(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), layer, nn.ReLU(), nn.Linear(6, 3))


class OnSignals(nn.Module):
    """Instance norm over rows of six channels, four values each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.InstanceNorm1d(6, track_running_stats=True), nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.linear(self.norm(rows[:, :, None] * torch.tensor([1.0, -1.0, 0.5, 2.0])).mean(2))


class Holding(nn.Module):
    """Beside a linear layer, a tensor that every training step writes to and that has no gradient."""

    def __init__(self, begin: Tensor, step: Callable[[Tensor, Tensor], Tensor], *, parameter: bool = False) -> None:
        super().__init__()
        self.linear, self.step = nn.Linear(6, 3), step
        if parameter:
            self.held = nn.Parameter(begin, requires_grad=False)
        else:
            self.register_buffer("held", begin)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.held.copy_(self.step(self.held, rows))
        return self.linear(rows)


class Spectral(nn.Module):
    """A complex parameter, as in layers over frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.linear = nn.Parameter(torch.randn(4, dtype=torch.cfloat) * 0.1), nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.linear(torch.fft.irfft(torch.fft.rfft(rows) * self.weight, n=6))


class Own(nn.Module):
    """A normalization of one's own, whose statistics have torch's names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("running_mean", torch.zeros(6))

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.running_mean = 0.9 * self.running_mean + 0.1 * rows.mean(0)
        return self.linear(rows - self.running_mean)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "spectral norm, new": lambda: around(parametrizations.spectral_norm(nn.Linear(6, 6))),
    "weight norm, new": lambda: around(parametrizations.weight_norm(nn.Linear(6, 6))),
    "batch norm": lambda: around(nn.BatchNorm1d(6)),
    "instance norm": OnSignals,
    "own normalization": Own,
    "float buffer": lambda: Holding(torch.ones(3), lambda held, rows: rows.mean(0)[:3]),
    "integer buffer": lambda: Holding(torch.arange(4), lambda held, rows: held + 1),
    "mask": lambda: Holding(torch.tensor([0.0, -torch.inf]), lambda held, rows: held),
    "frozen parameter": lambda: Holding(torch.ones(6), lambda held, rows: rows.mean(0), parameter=True),
    "quantization codes": lambda: Holding(torch.arange(256), lambda held, rows: held, parameter=True),
    "complex parameter": Spectral,
}
IN_EACH_RUN = {"spectral norm, new", "batch norm", "integer buffer", "frozen parameter"}  # of the tests
EVERY_MODEL = pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=() if name in IN_EACH_RUN else pytest.mark.proof)
        for name, make in MODELS.items()
    ],
)
ONE_MODEL = pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=() if name == "batch norm" else pytest.mark.proof)
        for name, make in MODELS.items()
    ],
)


def averaged_job(make: Callable[[], nn.Module], kind: Any, **changes: Any) -> hasten.Job:
    # A norm to clip by: without one, complex gradients are not supported.
    return small_job(model=make, average=kind, valid=small_job().train, clip_norm=10.0, **changes)


def mean_of(values: Sequence[Tensor], kind: Any) -> Tensor:
    """Of a tensor after each update."""
    if kind is EQUAL:
        return torch.stack(values[int(EQUAL.start * len(values)) :]).mean(0)
    mean = values[0]
    for each in values[1:]:
        mean = mean * EMA.decay + each * (1 - EMA.decay)
    return mean


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


def check_means_and_copies(
    kept: Mapping[str, Tensor], states: Sequence[dict[str, Tensor]], model: nn.Module, kind: Any
):
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert trained
    assert kept.keys() == states[-1].keys()
    for name, found in kept.items():
        if name in trained or name.endswith(("running_mean", "running_var")):
            torch.testing.assert_close(found, mean_of([state[name] for state in states], kind))
        else:
            assert torch.equal(found, states[-1][name]), name


@pytest.mark.trap(32)
@KINDS
@EVERY_MODEL
def test_kept_weights_are_means_of_what_is_trained_and_of_statistics_and_copies_of_all_else(make, kind):
    states = []
    with hasten.prepare(averaged_job(make, kind)) as run:
        for batch in run.batches():
            run.step(batch)
            states.append(snapshot(run.model))
        evaluation, kept = run.evaluate(), run.weights()
        check_means_and_copies(kept, states, run.model, kind)
        assert all(torch.equal(each, states[-1][name]) for name, each in run.model.state_dict().items())
        model = make()
        model.load_state_dict(kept)
        rows, labels = small_job().train
        with torch.no_grad():
            loss = functional.cross_entropy(model.eval()(rows), labels).item()
        assert evaluation.results["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.trap(36)
@KINDS
@ONE_MODEL
def test_a_resumed_average_is_the_undisturbed_one_to_the_bit(make, kind, tmp_path):
    def trained(run: Any, steps: int) -> None:
        for batch in run.batches():
            run.step(batch)
            if run.steps == steps:
                break

    with hasten.prepare(averaged_job(make, kind)) as run:
        trained(run, 4)
        state = state_in_a_file(run, Store(tmp_path))
        trained(run, 10)
        wanted, results = run.weights(), run.evaluate().results
    torch.manual_seed(1234)
    with hasten.prepare(averaged_job(make, kind)) as resumed:
        resumed.load_state_dict(state)
        trained(resumed, 10)
        found = resumed.weights()
        assert all(torch.equal(each, found[name]) for name, each in wanted.items())
        assert resumed.evaluate().results == results


@KINDS
@ONE_MODEL
def test_what_a_checkpoint_keeps_as_weights_is_what_the_run_keeps(make, kind, tmp_path):
    result = hasten.train(
        averaged_job(make, kind), run_dir=tmp_path / "run", saving=Saving(every_steps=5), receivers=[]
    )
    export_weights(tmp_path / "run", tmp_path / "out.safetensors")
    exported = safetensors.torch.load_file(tmp_path / "out.safetensors")
    assert exported.keys() == result.weights.keys()
    assert all(torch.equal(exported[name], each) for name, each in result.weights.items())


NORMS = {"old": nn.utils.spectral_norm, "new": parametrizations.spectral_norm}


@pytest.mark.parametrize(
    ("form", "kind"),
    [("new", EMA), *(pytest.param(*each, marks=pytest.mark.proof) for each in (("old", EMA), ("new", EQUAL)))],
)
def test_spectral_norm_under_an_average_keeps_unit_vectors_and_evaluates_as_well_as_without(form, kind):
    def make() -> nn.Module:
        norm = NORMS[form]
        return nn.Sequential(
            norm(nn.Linear(6, 32)), nn.ReLU(), norm(nn.Linear(32, 32)), nn.ReLU(), norm(nn.Linear(32, 3))
        )

    changes = {"epochs": 20, "optimizer": lambda params: torch.optim.AdamW(params, lr=1e-2)}
    result = hasten.train(averaged_job(make, kind, **changes), receivers=[])
    plain = hasten.train(averaged_job(make, None, **changes), receivers=[])
    assert result.results["loss"] == pytest.approx(plain.results["loss"], rel=0.1)
    vectors = [each for name, each in result.weights.items() if name.endswith(("_u", "_v"))]
    assert len(vectors) == 6
    for each in vectors:
        assert each.norm().item() == pytest.approx(1, abs=1e-5)


def test_a_buffer_that_is_filled_in_an_evaluation_stays_filled():
    class Table(Holding):
        def forward(self, rows: Tensor) -> Tensor:
            if not self.training:
                self.held[: len(rows)] = 1
            return super().forward(rows)

    with hasten.prepare(averaged_job(lambda: Table(torch.zeros(64), lambda held, rows: held), EMA)) as run:
        for batch in run.batches():
            run.step(batch)
        assert not run.model.held.any()
        run.evaluate()
        assert run.model.held.tolist() == [1] * 8 + [0] * 56
