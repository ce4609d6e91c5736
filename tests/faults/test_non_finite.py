"""No update that is not finite is ever applied, and what ends for it names the step, the parameter and the samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.entry import prepare, train
from hasten.errors import NonFinite
from hasten.facts.plan import Plan, make_plan
from hasten.training.run import Run
from support import small_job

pytestmark = pytest.mark.fault("NaN/Inf loss, gradient, norm")

SAMPLES, BATCH, PARTS = 40, 8, 4
BAD_STEP = 3


class Marked(nn.Module):
    """A classifier with batch norm and dropout. Rows carry their own number in the first column, and no number is
    used to compute with."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.5), nn.Linear(8, 3)
        self.dropout = nn.Dropout(0.3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.dropout(self.norm(self.body(rows[:, 1:]))))


def rows(bad: dict[int, float] | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(SAMPLES, 7, generator=generator)
    features[:, 0] = torch.arange(SAMPLES)
    for row, value in (bad or {}).items():
        features[row, 3] = value
    return features, torch.randint(0, 3, (SAMPLES,), generator=generator)


def plain(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def holds(batch: tuple[Tensor, Tensor], row: int) -> bool:
    return bool((batch[0][:, 0] == row).any())


def in_the_loss(row: int, value: float) -> Callable[..., Tensor]:
    return lambda model, batch: plain(model, batch) * (value if holds(batch, row) else 1.0)


def in_one_gradient(row: int, value: float) -> Callable[..., Tensor]:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        here = value if holds(batch, row) else 0.0
        return plain(model, batch) + _Planted.apply(model.head.bias, here)

    return loss


class _Planted(torch.autograd.Function):
    """0, with one element of its gradient as planted."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, value: float) -> Tensor:
        ctx.shape, ctx.value = parameter.shape, value
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        planted = torch.zeros(ctx.shape)
        planted[1] = ctx.value
        return planted, None


def marked_job(**changes: Any) -> Any:
    fields = {"model": Marked, "loss": plain, "train": rows(), "batch_size": BATCH, "epochs": 3, "log_every": 1}
    optimizer = {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True)}
    return small_job(**(fields | optimizer | changes))


def planted(kind: str, row: int, value: float) -> Any:
    if kind == "input":
        return marked_job(train=rows({row: value}))
    return marked_job(loss=(in_the_loss if kind == "loss" else in_one_gradient)(row, value))


@cache
def row_at(part: int) -> int:
    """The first row of the bad step's microbatch of this number."""
    with prepare(marked_job(), plan_of("parts")) as run:
        batches = [batch for batch, _ in zip(run.epoch_batches(), range(BAD_STEP * PARTS), strict=False)]
    return int(batches[(BAD_STEP - 1) * PARTS + part][0][0, 0])


def plan_of(shape: str) -> Plan | None:
    return make_plan(microbatch=BATCH // PARTS) if shape == "parts" else None


def digest(tensors: Any) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.detach().numpy().tobytes())
    return found.hexdigest()


def parameters(run: Run) -> str:
    return digest(dict(run.model.named_parameters()))


def buffers(run: Run) -> str:
    return digest(dict(run.model.named_buffers()))


def seen_at(run: Run) -> tuple[Any, ...]:
    """All that a refused step must leave alone."""
    momenta = {str(number): each["momentum_buffer"] for number, each in enumerate(run.optimizers[0].state.values())}
    position = run.steps, run.epoch, run.built.batches.position.window
    return parameters(run), buffers(run), digest(momenta), position


def deciding(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr("hasten.training.step.decides_on_device", lambda device, optimizers: where == "device")


PLANTED = pytest.mark.parametrize(
    ("kind", "shape", "part", "value", "where"),
    [
        ("input", "whole", 0, math.nan, "host"),
        ("input", "parts", 1, math.inf, "device"),
        ("loss", "whole", 0, math.inf, "device"),
        ("loss", "parts", 0, math.nan, "host"),
        ("gradient", "whole", 0, math.nan, "device"),
        ("gradient", "parts", PARTS - 1, math.inf, "host"),
    ],
)
both = pytest.mark.parametrize("where", ["host", "device"])


# ── refused ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@PLANTED
def test_a_refused_step_moves_nothing_and_names_itself_its_parameter_and_its_samples(
    kind, shape, part, value, where, monkeypatch
):
    deciding(monkeypatch, where)
    bad = row_at(part)
    with prepare(planted(kind, bad, value), plan_of(shape)) as run:
        run.keep_window_starts()
        before, begins = [], True
        with pytest.raises(NonFinite) as refusal:
            for batch in run.batches():
                if begins:
                    before.append(seen_at(run))
                run.step(batch)
                begins = run.window_closed
        assert seen_at(run) == before[BAD_STEP - 1]
        samples = run.loader._order.indices(0, (BAD_STEP - 1) * BATCH, BAD_STEP * BATCH).tolist()
    error = refusal.value
    assert (error.exit_code, bad in samples) == (13, True)
    told = ", ".join(map(str, samples))
    assert error.where == f"optimizer step {BAD_STEP} (epoch 1, samples {told} of Job.train)"
    name = "head.bias" if kind == "gradient" else "body.weight"
    assert error.what.endswith(
        f"a gradient of {name} is not finite; the update was not applied and the weights are unharmed"
    )


@both
@pytest.mark.parametrize("options", [{}, {"clip_norm": 1.0}], ids=str)
def test_the_last_step_of_an_epoch_is_refused_as_any_other(options, where, monkeypatch):
    deciding(monkeypatch, where)
    steps = SAMPLES // BATCH
    with prepare(marked_job()) as run:
        *_, last = run.epoch_batches()
    job = planted("gradient", int(last[0][0, 0]), math.nan)
    with prepare(marked_job(loss=job.loss, **options)) as run, pytest.raises(NonFinite, match=r"head\.bias") as refusal:
        for batch in run.batches():
            run.step(batch)
    assert refusal.value.where.startswith(f"optimizer step {steps} (epoch 1, samples ")
    assert (run.steps, run.epoch, run.built.batches.position.window) == (steps - 1, 0, steps - 1)


@both
def test_a_norm_that_overflows_under_finite_gradients_is_told_as_what_it_is(where, monkeypatch):
    deciding(monkeypatch, where)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return plain(model, batch) * (1e38 if holds(batch, bad) else 1.0)

    bad = row_at(0)
    with pytest.raises(NonFinite, match=r"^optimizer step 3 .*the norm of the gradients is not finite, although every"):
        train(marked_job(loss=loss, clip_norm=1.0), receivers=[])


# ── a loss that is not finite under finite gradients ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("log_every", "read_every"), [(7, None), (4, 50)])
def test_a_loss_that_is_not_finite_under_finite_gradients_names_its_first_step_and_samples(log_every, read_every):
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return plain(model, batch) + torch.tensor(math.nan if holds(batch, bad) else 0.0)

    bad = row_at(0)
    plan = make_plan(device_metrics=read_every) if read_every else None
    with pytest.raises(NonFinite, match="every gradient was finite") as failure:
        train(marked_job(loss=loss, log_every=log_every), plan, receivers=[])
    assert failure.value.exit_code == 13
    assert failure.value.where.startswith(f"optimizer step {BAD_STEP} (epoch 1, samples ")
    assert f" {bad}," in failure.value.where.replace(" of Job.train)", ",")


# ── skipped ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def scaling(job: Any, plan: Plan | None) -> Run:
    run = prepare(job, plan)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)  # fp16 itself takes minutes a step on a CPU
    run.built.step.window.scaler = scaler
    run.keep_window_starts()  # as a run of fp16 does by itself
    return run


@PLANTED
def test_under_loss_scaling_the_step_is_skipped_and_counted_and_training_goes_on(
    kind, shape, part, value, where, monkeypatch
):
    deciding(monkeypatch, where)
    bad = row_at(part)
    skips, epoch, begins = [], SAMPLES // BATCH, True
    with scaling(planted(kind, bad, value), plan_of(shape)) as run:
        for batch in run.batches():
            if begins:
                before = parameters(run)
            run.step(batch)
            begins = run.window_closed
            if begins and parameters(run) == before:
                skips.append(run.steps)
        run.built.step.skips.settle()
        assert run.built.step.skips.skipped == len(skips) == 3  # in every epoch
        assert (skips[0], run.steps) == (BAD_STEP, 3 * epoch)
        assert all(each.isfinite().all() for each in run.model.state_dict().values())


@both
def test_what_overflows_in_a_forward_pass_does_not_stay_in_batch_norms_averages(where, monkeypatch):
    deciding(monkeypatch, where)
    before, after = {}, {}
    with scaling(planted("input", row_at(0), math.inf), None) as run:
        for batch in run.epoch_batches():
            before[run.steps + 1] = buffers(run)
            run.step(batch)
            run.built.step.skips.settle()
            after[run.steps] = buffers(run)
    assert after[BAD_STEP] == before[BAD_STEP]
    assert after[BAD_STEP + 1] != before[BAD_STEP + 1]


@both
def test_skips_without_end_are_refused_with_the_last_parameter_and_samples(where, monkeypatch):
    deciding(monkeypatch, where)
    monkeypatch.setattr("hasten.training.step_parts.skips.TOO_MANY_IN_A_ROW", 4)
    job = marked_job(loss=lambda model, batch: plain(model, batch) * (1.0 if fine else math.inf))
    with scaling(job, None) as run, pytest.raises(NonFinite) as refusal:
        for batch in run.batches():
            fine = run.steps == 0  # until one has applied, the host decides
            run.step(batch)
    assert refusal.value.where.startswith("optimizer step 5, after 3 skipped (epoch 1, samples ")
    assert "a gradient of body.weight is not finite; the update was not applied" in refusal.value.what
    assert "4 times in a row" in refusal.value.what
    assert run.built.step.skips.skipped == 3


class NoNumber:
    """A metric that becomes NaN in its second evaluation."""

    evaluations = 0

    def reset(self) -> None:
        pass

    def update(self, prediction: Any, target: Any) -> None:
        pass

    def compute(self) -> float:
        self.evaluations += 1
        return math.nan if self.evaluations == 2 else 1.0


def test_a_watched_metric_that_is_nan_ends_the_run_with_its_last_step_saved(tmp_path):
    rows = small_job().train
    job = small_job(
        loss=hasten.supervised(functional.cross_entropy),
        valid=rows,
        evaluate_every=4,
        metrics={"score": NoNumber()},
        stop=hasten.EarlyStopping("score", mode="max"),
    )
    with pytest.raises(NonFinite, match="'score' is NaN"):
        train(job, receivers=[], run_dir=tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "step-8").exists()


def test_the_finite_check_works_under_any_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        rows, labels = small_job().train
        weights = train(small_job(train=(rows.double(), labels), epochs=1), receivers=[]).weights
    finally:
        torch.set_default_dtype(torch.float32)
    assert {each.dtype for each in weights.values()} == {torch.float64}
