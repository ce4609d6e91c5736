"""All that the next step of a run depends on, composed of parts that each save themselves.

A state is taken between two optimizer steps and refers to the run's own tensors: copy it, or write it, before the next
step. Ranks take and load it together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hasten.checkpoint.sharded.rank_files import Pieced, assembled
from hasten.data.order.randomness import random_state, set_random_state
from hasten.errors import Misconfigured
from hasten.parallel.collectives import gather_over_ranks
from hasten.parallel.grid import Grid
from hasten.parallel.replicate.replica_check import check_same_weights
from hasten.parallel.sharding import Sharding
from hasten.training.batches.training_data import DataPosition
from hasten.training.schedule.group_values import as_stored
from hasten.training.schedule.rate_schedule import RateSchedule
from hasten.training.state.averages import WeightAverage
from hasten.training.state.declared_state import DeclaredState
from hasten.training.state.sharded_state import own_part
from hasten.training.state.torch_tensors import have_same_form, make_buffers
from hasten.training.state.window_snapshot import SMALL_BYTES

_ADDED_BY_PLAN = frozenset({"ending"})  # starts empty where the run began without it
_LOST = "the random numbers of layers such as dropout differ from those of the uninterrupted run"
_IMPLEMENTATION = ("foreach", "fused")  # how an optimizer computes: it follows from the plan, not from the checkpoint


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any) -> Any: ...


@dataclass(kw_only=True, slots=True)
class TrainState:
    """extra: further parts by their names in the state, such as counters, early stopping and random generators."""

    model: nn.Module
    optimizers: Sequence[Optimizer]
    schedule: RateSchedule
    average: WeightAverage | None
    declared: DeclaredState
    position: DataPosition
    sharding: Sharding
    device: torch.device
    extra: dict[str, Stateful] = field(default_factory=dict[str, Stateful])

    def after_update(self) -> None:
        """An update was applied."""
        self.schedule.after_update()
        if self.average is not None:
            if self.sharding.owners:  # the average needs the buffers of the stages that update them
                self.sharding.settle_buffers(self.model, [], self.device)
            self.average.after_update()

    def settle(self) -> None:
        """Before weights are evaluated, saved or returned: all ranks get the first one's buffers.

        Raises JobError, on all ranks, for replicas that hold different weights.
        """
        grid = self.sharding.grid
        if not grid.all.many:
            return
        named = self.declared.named_parameters()
        if not self.sharding.in_parts:
            named += [each for each in self.model.named_parameters() if self.sharding.has(each[0])]
        check_same_weights(named, grid, self.device)
        statistics = [] if self.average is None or self.sharding.owners else self.average.statistics
        self.sharding.settle_buffers(self.model, statistics, self.device)

    def state_dict(self) -> dict[str, Any]:
        """Raises JobError for a scheduler that cannot give its state, and as settle() does."""
        self.settle()
        return {
            "model": self.sharding.marked(self.model.state_dict()),
            "unsaved_buffers": self._unsaved_buffers(),
            "declared": self.declared.state_dict(),
            "optimizers": [self._optimizer_state(optimizer) for optimizer in self.optimizers],
            "schedule": self.schedule.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "position": self.position.state_dict(),
            **{name: part.state_dict() for name, part in self.extra.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises Misconfigured for the state of another model or optimizer, JobError for that of another schedule."""
        try:
            self._load_model(state["model"])
            self._load_unsaved_buffers(state["unsaved_buffers"])
            self.declared.load_state_dict(state["declared"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                self._load_optimizer(optimizer, saved)
        except (RuntimeError, ValueError, KeyError) as error:
            what = f"the saved state does not fit this job: {' '.join(str(error).split())}"
            raise Misconfigured(what, fix="resume with the model and optimizer that the run started with") from error
        self.schedule.load_state_dict(state["schedule"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.position.load_state_dict(state["position"])
        for name, part in self.extra.items():
            if name in state or name not in _ADDED_BY_PLAN:
                part.load_state_dict(state[name])

    def _load_model(self, saved: Mapping[str, Any]) -> None:
        make_buffers(self.model, saved)
        present = self.model.state_dict()
        self.model.load_state_dict(
            {
                key: own_part(self.sharding, key, each, present[key]) if key in present else each
                for key, each in saved.items()
            }
        )

    def _unsaved_buffers(self) -> dict[str, Tensor]:
        """Small buffers with persistent=False, which a step may change, such as counters. Large ones are tables that
        the model computes."""
        saved = self.model.state_dict(keep_vars=True)
        return {
            name: each
            for name, each in self.model.named_buffers()
            if name not in saved and each.layout is torch.strided and each.nbytes <= SMALL_BYTES
        }

    def _load_unsaved_buffers(self, saved: Mapping[str, Tensor]) -> None:
        present = dict(self.model.named_buffers())
        with torch.no_grad():
            for name, each in saved.items():
                if name in present and have_same_form(present[name], each):
                    present[name].copy_(each)

    # ── optimizers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """With a mark on each tensor of a parameter's size of which this rank holds a share, or nothing."""
        saved, names = optimizer.state_dict(), self._names()
        groups = [{key: as_stored(each) for key, each in group.items()} for group in saved["param_groups"]]
        if not self.sharding.is_tensor_or_pipeline_parallel:
            return saved | {"param_groups": groups}
        numbered = _numbered(optimizer, saved)
        state = {
            number: {
                key: self._marked(optimizer, names[id(parameter)], parameter, each)
                for key, each in saved["state"][number].items()
            }
            for parameter, number in numbered
            if number in saved["state"]
        }
        if self.sharding.owners:
            by_number = {number: names.get(id(parameter), "") for parameter, number in numbered}
            state = self.sharding.optimizer_state_of_all_stages(state, by_number, self.device)
        return saved | {"param_groups": groups, "state": state}

    def _marked(self, optimizer: Optimizer, name: str, parameter: Tensor, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0 or name not in self.sharding.splits:
            return value
        if value.shape != parameter.shape:
            what = f"{type(optimizer).__name__} has a state of {name} with a different shape than the parameter"
            fix = "use an optimizer that updates each element independently, or remove `tensor` from the plan"
            raise Misconfigured(f"{what}, which is divided", where="tensor", fix=fix)
        return Sharding(grid=self.sharding.grid, splits=self.sharding.splits).mark(name, value)

    def _names(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self.model.named_parameters()}

    def _load_optimizer(self, optimizer: Optimizer, saved: dict[str, Any]) -> None:
        saved = saved | {"state": self._own_state(optimizer, saved)}
        computes = [{key: group[key] for key in _IMPLEMENTATION if key in group} for group in optimizer.param_groups]
        optimizer.load_state_dict(saved)
        for group, own in zip(optimizer.param_groups, computes, strict=True):
            group.update(own)
        # torch casts a parameter's state to the parameter's dtype; an optimizer may have chosen another.
        for parameter, number in _numbered(optimizer, saved):
            for key, value in saved["state"].get(number, {}).items():
                present = optimizer.state[parameter][key]
                if isinstance(value, Tensor) and isinstance(present, Tensor) and present.dtype != value.dtype:
                    optimizer.state[parameter][key] = value.to(present.device, copy=True)

    def _own_state(self, optimizer: Optimizer, saved: dict[str, Any]) -> dict[int, Any]:
        """The saved state by parameter number, with tensors of a parameter's size held as the parameter is."""
        parameters, names = {number: each for each, number in _numbered(optimizer, saved)}, self._names()

        def held(value: Any, parameter: Tensor) -> Any:
            if not isinstance(value, Tensor | Pieced) or len(value.shape) != parameter.dim() or not parameter.dim():
                return assembled(value)
            own = own_part(self.sharding, names.get(id(parameter), ""), value, parameter)
            return own if own.shape == parameter.shape else assembled(value)

        return {
            number: {key: held(value, parameters[number]) for key, value in values.items()}
            for number, values in saved["state"].items()
            if self.sharding.has(names.get(id(parameters[number]), ""))
        }


def _numbered(optimizer: Optimizer, saved: dict[str, Any]) -> list[tuple[Tensor, int]]:
    """Raises ValueError where the saved state has another number of parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    return [*zip(parameters, numbers, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomStates:
    """torch's, NumPy's and Python's global generators on every rank, saved together as a list and loaded by rank.
    torch's are seeded again for each step.

    notify: receives why they could not be restored; they then stay as they are.
    """

    grid: Grid
    device: torch.device
    notify: Callable[[str], None]

    def state_dict(self) -> dict[str, Any]:
        """All ranks call it together."""
        states = gather_over_ranks([random_state(self.device)], self.grid.all, self.device)
        return {"together": self.grid.together, "ranks": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        before, now = len(state["ranks"]), self.grid.all.size
        if (state["together"], before) != (self.grid.together, now):
            ranks = f"by {before} ranks and resumed with {now}" if before != now else "by ranks of another layout"
            self.notify(f"the run was saved {ranks}: {_LOST}")
            return
        try:
            set_random_state(state["ranks"][self.grid.all.rank], self.device)
        except ValueError as error:
            self.notify(f"{_LOST}: {error}")
