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
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from hasten.errors import JobError
from hasten.facts.loss import Loss
from hasten.facts.ranks import Ranks
from hasten.parallel.loss_of_model import LossOfModel
from hasten.parallel.made_once import bring
from hasten.parallel.options import ShardOptions
from hasten.parallel.replicate import follow_the_leader
from hasten.parallel.unwritten import Unwritten

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
        in_parts(self._root, blocks_of(model), mesh, options, before=lambda each: bring(each, device, ranks))

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        """`model` is the one that is sharded; there is no other. Raises JobError for a loss with an auxiliary term."""
        with torch.no_grad():
            follow_the_leader(self._model.buffers(), self._ranks)
        differentiated, unseen = self._root(batch)
        returned = unseen.with_total(differentiated)
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


def in_parts(
    root: nn.Module,
    blocks: Iterable[nn.Module],
    mesh: DeviceMesh,
    options: ShardOptions,
    *,
    before: Callable[[nn.Module], object] = lambda module: None,
    ignored: Iterable[nn.Parameter] = (),
) -> None:
    """Let parameters become parts, in place: those of each block, which are gathered when it computes, and those that
    are left, gathered for a pass of the root. root: holds the model by that name. before: called with each of these
    first. ignored: stay as they are."""
    sums = options.gradients or (torch.float32 if options.parameters else None)
    of_blocks = MixedPrecisionPolicy(options.parameters, sums)
    of_root = MixedPrecisionPolicy(None, options.gradients, cast_forward_inputs=False)
    unwritten, names = Unwritten(), {each: name for name, each in root.named_modules()}
    for block in blocks:
        before(block)
        unwritten.watch(block, names)
        fully_shard(block, mesh=mesh, reshard_after_forward=not options.keeps_gathered, mp_policy=of_blocks)
        if options.keeps_gathered:
            block.register_forward_pre_hook(_refusing_a_change(block))
    before(root)
    unwritten.watch(root, names)
    fully_shard(root, mesh=mesh, mp_policy=of_root, ignored_params={*ignored})


def _refusing_a_change(block: nn.Module) -> Callable[[nn.Module, Any], None]:
    """A hook that raises JobError where a loss has changed what the block trains: a part, and what is gathered of it,
    have a flag each, and a loss changes the one that it finds."""
    held = [each._parameters for each in block.modules()]

    def trains() -> list[bool]:
        return [each is not None and each.requires_grad for some in held for each in some.values()]

    at_first = trains()

    def refuse(module: nn.Module, given: Any) -> None:
        if trains() != at_first:
            what = "changes requires_grad in its loss, and layers that stay gathered would train something else"
            raise JobError("model", what, 'take shard = "zero3", which gathers them for each call')

    return refuse


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
    """The layers that a model repeats: members of a container that have a class in common with another one there, the
    outermost, but containers themselves are looked into. What shares a parameter with another part of the model is
    none, as torch gathers it once."""
    owners = Counter(id(own) for module in model.modules() for own in module._parameters.values())
    blocks, inside = list[nn.Module](), set[int]()
    for container in model.modules():
        if not isinstance(container, _CONTAINERS) or id(container) in inside:
            continue
        members = cast("list[nn.Module]", [*container.children()])
        kinds = Counter(map(type, members))
        for member in members:
            own = [*member.parameters()]
            alone = all(owners[id(parameter)] == 1 for parameter in own)
            repeated = kinds[type(member)] > 1 and type(member) not in _CONTAINERS and id(member) not in inside
            if repeated and own and alone and _is_called(member):
                blocks.append(member)
                inside.update(map(id, member.modules()))
    return blocks


def _is_called(module: nn.Module) -> bool:
    """Not only looked into, as lists of modules are."""
    return type(module).forward is not nn.Module.forward
