"""Every rank holds a part of each parameter, of its gradient and of its optimizer's state.

Built on torch's own fully_shard (FSDP2). A block's parameters are gathered from all ranks before it computes; what is
left behind its backward pass is each rank's part of the gradient, summed over all ranks. So what a rank holds at a time
is its parts, and one block. As a replica does, torch divides by the number of ranks, and the step multiplies that back.

Gradients are reduced behind every microbatch: to keep them whole until the last would take the memory that this is for.

Source: ZeRO, Rajbhandari et al. 2020, arXiv:1910.02054;
https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from hasten.errors import JobError
from hasten.facts.job import Loss
from hasten.facts.ranks import Ranks
from hasten.parallel.called_alike import CalledAlike
from hasten.parallel.differentiated_inside import refuse_twice
from hasten.parallel.loss_of_model import LossOfModel
from hasten.parallel.options import ShardOptions
from hasten.parallel.passes import Passes
from hasten.parallel.replicate.replicated import follow_the_leader
from hasten.parallel.shard.meta_init import bring
from hasten.parallel.through_layers import through_layers
from hasten.parallel.unwritten import Unwritten, places_in

_CONTAINERS = nn.ModuleList, nn.Sequential, nn.ModuleDict


class Sharded:
    """A loss function over a model whose parameters become parts (DTensor) here, in place: make it before all that
    holds parameters.

    Blocks are gathered once in a step (ZeRO 2), or given free between their forward and their backward pass (ZeRO 3).
    """

    def __init__(
        self,
        loss: Callable[[nn.Module, Any], Any],
        model: nn.Module,
        ranks: Ranks,
        device: torch.device,
        options: ShardOptions,
        mesh: DeviceMesh | None = None,
    ) -> None:
        """The model may lie on the host: block by block it comes to the device, and becomes parts there.

        mesh: of these ranks; None makes one of all that there are.
        """
        self._model, self._ranks, self._root = model, ranks, LossOfModel(loss, model)
        mesh = mesh or init_device_mesh(device.type, (ranks.size,), mesh_dim_names=("shard",))
        self._parts = in_parts(
            self._root, blocks_of(model), mesh, options, before=lambda each: bring(each, device, ranks)
        )

    def begin(self) -> None:
        """It is known what is trained."""
        self._parts.begin()

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        """`model` is the one that is sharded; there is no other. Raises JobError for a loss with an auxiliary term, and
        for one that takes parameters from a layer without calling it, or differentiates by itself."""
        with torch.no_grad():
            follow_the_leader(self._model.buffers(), self._ranks)
        returned = through_layers(self._root, batch, self._parts.is_root_freed)
        if isinstance(returned, Loss) and returned.auxiliary is not None:
            raise JobError(
                "loss",
                "has an auxiliary term, which is differentiated by itself, and parameters in parts cannot be",
                "leave `shard` out of the plan, or add the term to the total",
            )
        return returned

    def without_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def forward_only(self) -> AbstractContextManager[None]:
        return without_backward(self._root)


def check_shapes(model: nn.Module) -> None:
    """Raises JobError for a parameter that has no dimension to be divided along."""
    single = [name for name, each in model.named_parameters() if not each.dim()]
    if single:
        what = f"holds {', '.join(single[:3])}: numbers without a dimension, along which processes could divide them"
        raise JobError("model", what, "make them of shape [1], or leave `shard` out of the plan")


def in_parts(
    root: nn.Module,
    blocks: Iterable[nn.Module],
    mesh: DeviceMesh,
    options: ShardOptions,
    *,
    before: Callable[[nn.Module], object] = lambda module: None,
    ignored: Iterable[nn.Parameter] = (),
) -> InParts:
    """Let parameters become parts, in place: those of each block, which are gathered when it computes, and those that
    are left, gathered for a pass of the root.

    root: holds the model by that name. before: called with each of these first. ignored: stay as they are.
    """
    sums = options.gradients or (torch.float32 if options.parameters else None)
    of_blocks = MixedPrecisionPolicy(options.parameters, sums)
    of_root = MixedPrecisionPolicy(None, options.gradients, cast_forward_inputs=False)
    places, blocks, parts = places_in(root), [*blocks], InParts()
    passes, looks = Passes(root), list[Unwritten]()
    for block in blocks:
        before(block)
        held = [place for module in block.modules() for place in places.pop(module, ())]
        looks.append(Unwritten(block, held, passes))
        refuse_twice(block)
        fully_shard(block, mesh=mesh, reshard_after_forward=not options.keeps_gathered, mp_policy=of_blocks)
        if options.keeps_gathered:
            parts.keep_flags_of(block)
    before(root)
    looks.append(Unwritten(root, [*chain.from_iterable(places.values())], passes, others=[*looks]))
    fully_shard(root, mesh=mesh, mp_policy=of_root, ignored_params={*ignored})
    for look in looks:
        look.watch_parts()
    parts.is_root_freed = lambda: looks[-1].is_freed
    names = {module: name.removeprefix("model.") for name, module in root.named_modules()}
    CalledAlike(root, {names[block]: block for block in blocks}, mesh, passes)
    return parts


class InParts:
    """What ranks hold in parts."""

    def __init__(self) -> None:
        self._flags = list[_SameFlags]()
        self.is_root_freed: Callable[[], bool] = lambda: False  # of what lies around the layers, within a pass

    def keep_flags_of(self, block: nn.Module) -> None:
        self._flags.append(_SameFlags(block))
        block.register_forward_pre_hook(self._flags[-1])

    def begin(self) -> None:
        """It is known what they train."""
        for each in self._flags:
            each.begin()


class _SameFlags:
    """A hook of a layer that stays gathered, which raises JobError where a loss has changed what the layer trains: a
    part, and what is gathered of it, have a flag each, and a loss changes the one that it finds."""

    def __init__(self, layer: nn.Module) -> None:
        self._held = [each._parameters for each in layer.modules()]
        self._at_first: list[bool] | None = None

    def begin(self) -> None:
        """From here on."""
        self._at_first = self._trains()

    def __call__(self, layer: nn.Module, given: Any) -> None:
        if self._at_first not in (None, self._trains()):
            what = "changes requires_grad in its loss, and layers that stay gathered would train something else"
            raise JobError("model", what, 'take shard = "zero3", which gathers them for each call')

    def _trains(self) -> list[bool]:
        return [each is not None and each.requires_grad for some in self._held for each in some.values()]


@contextmanager
def without_backward(root: nn.Module) -> Iterator[None]:
    """Inside, no backward pass follows; behind it, nothing stays gathered. Inference mode would leave tensors that no
    later step can write to."""
    try:
        with torch.no_grad():
            yield
    finally:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The layers that a model repeats, innermost first: members of a container that have a class in common with another
    one there. No single layers of such a member, and none that holds nothing but others of these. What shares a
    parameter with another part of the model is none, as torch gathers it once."""
    ways = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    places = _places(model)

    def alone(member: nn.Module) -> bool:
        """Every way to what it holds leads through it."""
        return all(places[own] == ways[id(member)] * inside for own, inside in _places(member).items())

    def repeated(container: nn.Module) -> Iterator[nn.Module]:
        members = cast("list[nn.Module]", [*container.children()])
        kinds = Counter(map(type, members))
        for member in members if isinstance(container, _CONTAINERS) else ():
            own = next(member.parameters(), None)
            if kinds[type(member)] > 1 and own is not None and _is_called(member) and alone(member):
                yield member

    found, in_blocks = dict[nn.Module, None](), set[int]()

    def find(module: nn.Module, *, inside: bool) -> None:
        taken = {*repeated(module)}
        for member in module.children():
            find(member, inside=inside or member in taken)
            single = inside and next(member.children(), None) is None
            if member in taken and not single and any(id(own) not in in_blocks for own in member.parameters()):
                found[member] = None
                in_blocks.update(map(id, member.parameters()))

    find(model, inside=False)
    return [*found]


def _places(module: nn.Module) -> Counter[int]:
    """In how many places each parameter lies, by its number."""
    return Counter(id(own) for _, own in module.named_parameters(remove_duplicate=False))


def _is_called(module: nn.Module) -> bool:
    """Not only looked into, as lists of modules are."""
    return type(module).forward is not nn.Module.forward
