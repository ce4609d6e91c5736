"""A window that does not fit into memory is taken again in smaller parts, and nothing else of the training changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.entry import prepare, resume, train
from hasten.errors import OutOfMemory
from hasten.facts.events import Noticed, Resumed, Saved, Started, Trained
from hasten.facts.plan import make_plan
from hasten.facts.saving import Saving
from hasten.training.loop import train_run
from hasten.training.run import Run
from support import small_job
from support.training.collected_events import Collected

pytestmark = pytest.mark.fault("out of device memory mid-run")

TIGHT_FROM = 4  # the optimizer step in which memory is first short


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3))


def plain(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def full() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore that nobody reads")


class Memory:
    """A loss for which so many samples fit at a time, once the first windows are over."""

    def __init__(self, fits: int, error: Callable[[], Exception] = full, where: str = "forward") -> None:
        self.fits, self.error, self.where = fits, error, where
        self.calls, self.refused = 0, list[int]()

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.calls += 1
        loss = plain(model, batch)  # dropout has drawn by now
        if self.calls >= TIGHT_FROM and len(batch[1]) > self.fits:
            self.refused.append(len(batch[1]))
            if self.where == "forward":
                raise self.error()
            loss.register_hook(self._refuse)
        return loss

    def _refuse(self, gradient: Tensor) -> None:
        raise self.error()


def tight_job(loss: Any = plain, **changes: Any) -> Any:
    optimizer = lambda params: torch.optim.AdamW(params, lr=0.01)  # noqa: E731
    return small_job(**({"model": model, "loss": loss, "optimizer": optimizer, "log_every": 1, "seed": 3} | changes))


def losses(events: Any) -> list[str]:
    return [event.loss.hex() for event in events if isinstance(event, Trained)]


def told(events: Any) -> list[str]:
    return [event.text for event in events if isinstance(event, Noticed)]


def trained(job: Any, **arguments: Any) -> tuple[dict[str, Tensor], list[Any]]:
    collected = Collected()
    result = train(job, receivers=[collected], **arguments)
    return dict(result.weights), list(collected.events)


def steps_of(run: Run, number: int) -> Iterator[str]:
    for batch in run.epoch_batches():
        loss = run.step(batch)
        if run.window_closed:
            yield loss.item().hex()
        if run.steps == number and run.window_closed:
            return


def as_if_from_there_on(size: int) -> tuple[dict[str, Tensor], list[str]]:
    """The run whose microbatches had that size from step TIGHT_FROM on, because its plan says so."""
    with prepare(tight_job()) as whole:
        list(steps_of(whole, TIGHT_FROM - 1))
        state = whole.state_dict()
        state["batches"]["microbatch_size"] = size
    collected = Collected()
    with prepare(tight_job(), make_plan(microbatch=size)) as split:
        split.load_state_dict(state)
        result = train_run(split, collected)
    return dict(result.weights), losses(collected.events)


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())


@pytest.mark.parametrize(("fits", "sizes", "where"), [(4, [8], "forward"), (3, [8, 4], "backward")])
def test_from_the_window_that_did_not_fit_on_the_run_is_that_of_a_plan_with_this_microbatch(fits, sizes, where):
    memory = Memory(fits, where=where)
    weights, events = trained(tight_job(memory))
    assert memory.refused == sizes
    wanted, wanted_losses = as_if_from_there_on(sizes[-1] // 2)
    assert losses(events)[TIGHT_FROM - 1 :] == wanted_losses
    assert_same(weights, wanted)


def test_a_full_host_is_treated_alike():
    assert len(told(trained(tight_job(Memory(4, MemoryError)))[1])) == 1


def test_another_exception_is_not_taken_for_one():
    with pytest.raises(RuntimeError, match="planted"):
        trained(tight_job(Memory(4, lambda: RuntimeError("planted"))))


def test_a_resumed_run_goes_on_with_the_size_that_fits(tmp_path):
    wanted, _ = trained(tight_job(Memory(4)))
    memory = Memory(4)
    first = tight_job(memory, epochs=None, max_steps=6)
    trained(first, run_dir=tmp_path / "run", saving=Saving(every_steps=5))
    assert memory.refused == [8]
    again, collected = Memory(4), Collected()
    changed = {"epochs": None, "max_steps": 10}
    result = resume(
        tight_job(again, **changed), run_dir=tmp_path / "run", receivers=[collected], allow_change=["max_steps"]
    )
    assert again.refused == []
    assert told(collected.events) == []
    (resumed,) = [event for event in collected.events if isinstance(event, Resumed)]
    assert (resumed.started.microbatch_size, resumed.started.batch_size) == (4, 8)
    assert_same(dict(result.weights), wanted)


# ── where it ends the run ───────────────────────────────────────────────────────────────────────────────────────────


def failed(job: Any, folder: Any) -> tuple[OutOfMemory, list[Any]]:
    collected = Collected()
    with pytest.raises(OutOfMemory) as failure:
        train(job, run_dir=folder, receivers=[collected], saving=Saving(every_steps=100))
    assert failure.value.exit_code == 12
    assert isinstance(collected.events[0], Started)
    return failure.value, list(collected.events)


def test_batch_norm_would_see_other_batches_so_the_run_ends_with_its_last_step_saved(tmp_path):
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    error, events = failed(tight_job(Memory(4), model=normed), tmp_path / "run")
    assert "batch norm would see other batches" in error.what
    assert error.where == f"optimizer step {TIGHT_FROM}"
    assert [event.step for event in events if isinstance(event, Saved)] == [TIGHT_FROM - 1]


def test_batch_norm_that_is_frozen_sees_no_batches():
    def frozen() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        model[1].eval()
        return model

    assert len(told(trained(tight_job(Memory(4), model=frozen))[1])) == 1


def test_one_sample_that_does_not_fit_ends_the_run_with_its_last_step_saved(tmp_path):
    memory = Memory(0)
    error, events = failed(tight_job(memory), tmp_path / "run")
    assert memory.refused == [8, 4, 2, 1]
    assert error.what == "one sample does not fit: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert [event.step for event in events if isinstance(event, Saved)] == [TIGHT_FROM - 1]


class FullInTheUpdate(torch.optim.SGD):
    """Moves half of what it holds."""

    def step(self, closure: Any = None) -> Any:
        self.taken = getattr(self, "taken", 0) + 1
        if self.taken == TIGHT_FROM:
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(1.0)
            raise full()
        return super().step(closure)


def test_an_update_is_never_tried_again_and_what_it_left_half_moved_is_not_saved(tmp_path):
    collected = Collected()
    job = tight_job(optimizer=lambda params: FullInTheUpdate(params, lr=0.1))
    with pytest.raises(torch.OutOfMemoryError):
        train(job, run_dir=tmp_path / "run", receivers=[collected], saving=Saving(every_steps=2))
    assert told(collected.events) == []
    assert [event.step for event in collected.events if isinstance(event, Saved)] == [2]
    assert not (tmp_path / "run" / "checkpoints" / f"step-{TIGHT_FROM}").exists()
    assert not (tmp_path / "run" / "checkpoints" / f"step-{TIGHT_FROM - 1}").exists()
