"""An evaluation computes the same loss as training does, and a loss has no mode: what it holds of its own, such as a
teacher that follows the model or a running centre, would move with every evaluation. Here it comes back, and so do the
random generators of the job's own, which the loss and the model draw from.

What an evaluation makes or fills stays, such as a table for the length of its last batch, where the module remembers
that it did (Memories): else it would not do it again. So does what is large and has never moved before, as it is not
copied then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from hasten.facts.machine import free_memory, ranks_here
from hasten.training.buffer_copies import Copies, Holder, Place, Stays
from hasten.training.forms import dense_bytes
from hasten.training.generators import Generators
from hasten.training.loss_parameters import LossParameters
from hasten.training.memories import Memories, with_children
from hasten.training.moving_buffers import Moving, affordable_trial
from hasten.training.quiet import release_inference_tensors


class UnmovedLoss:
    """Call it around each evaluation. left_moved: the names of what the last one has moved or made, and that stays."""

    def __init__(self, held: LossParameters, generators: Generators) -> None:
        holders = [*held.holders, *(module._buffers for module in held.modules)]
        size = sum(dense_bytes(each) for holder in holders for each in holder.values())
        trial = affordable_trial(size, free_memory() / ranks_here())
        self._held, self._copies, self.left_moved = held, Copies(), list[str]()
        self._generators = generators
        self._moving = Moving(holders, apart=held.of_model(), trial_windows=trial)
        self._module_of = {id(module._parameters): module for module in held.modules}
        self._module_of |= {id(module._buffers): module for module in held.modules}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        moving, modules = self._moving, self._held.modules
        moving.look(compare=True)
        self._copies.take(moving.holders, moving.places, large_on_host=True)
        before = [dict(holder) for holder in moving.holders]
        tensors = {
            each: each.is_inference() for module in with_children(modules) for each in _of(module) if each is not None
        }
        standing, memories, drawn = moving.standing(), Memories(modules), self._generators.states()
        try:
            yield
        finally:
            self._generators.go_on_from(drawn)
            self._drop_new_items(before)
            moved = [each for each in standing if each.has_moved()]
            moving.copy_from_now_on([each.place for each in moved])  # though it comes back now
            stays = memories.filled()
            left = self._copies.put_contents_back(stays) + self._put_models_own_back(before, stays)
            left += [name for holder, had in zip(moving.holders, before, strict=True) for name in holder.keys() - had]
            self.left_moved = sorted({*left, *(each.place.name for each in moved if not each.is_copied)})
            release_inference_tensors(with_children(modules), tensors)

    def _put_models_own_back(self, before: list[Holder], stays: Stays) -> list[str]:
        """Parameters of the model that the loss holds too, of which the model has the content. Names of those that it
        holds no more."""
        own, left = self._held.of_model(), list[str]()
        for holder, had in zip(self._moving.holders, before, strict=True):
            for name, each in had.items():
                if id(each) not in own or holder.get(name) is each:
                    continue
                if name not in holder or stays(Place(holder, name), False):
                    left.append(name)
                else:
                    holder[name] = each
        return left

    def _drop_new_items(self, before: list[Holder]) -> None:
        """Of lists and dictionaries of parameters, which know from what they hold what they have."""
        for holder, had in zip(self._moving.holders, before, strict=True):
            if isinstance(self._module_of[id(holder)], nn.ParameterList | nn.ParameterDict):
                for name in holder.keys() - had:
                    del holder[name]
        self._held.fit_containers()


def _of(module: nn.Module) -> list[Tensor | None]:
    return [*module._buffers.values(), *module._parameters.values()]
