"""Every rank holds a part of each parameter, of its gradient and of its optimizer state.

Built on torch's fully_shard (FSDP2). A block's parameters are gathered from all ranks before it computes, and its
gradients are reduced to each rank's part after its backward pass, for every microbatch: whole gradients would take the
memory that sharding saves. torch divides by the number of ranks, and the step multiplies that back.

A loss must call every layer that it computes with, and must not write to gathered parameters: they are copies.

Source: ZeRO, Rajbhandari et al. 2020, arXiv:1910.02054;
https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from hasten.errors import JobError
from hasten.facts.job import Loss
from hasten.parallel.collectives import copy_from_first
from hasten.parallel.grid import DATA, Grid
from hasten.parallel.loss_module import LossModule
from hasten.parallel.options import ShardOptions
from hasten.parallel.repeated_blocks import unshared_blocks
from hasten.parallel.shard.meta_init import materialize
from hasten.parallel.sharding import Sharding
from hasten.parallel.strategy import LossFunction, Value, Window, first_of_all, refuse_sparse

_MIXED = "mixed torch.Tensor and DTensor"  # torch's words


class Sharded:
    """ZeRO 2 (options.keeps_gathered: a block's parameters stay gathered until its backward pass) or ZeRO 3."""

    def __init__(self, device: torch.device, grid: Grid, options: ShardOptions) -> None:
        self.grid, self.sharding, self.notices = grid, Sharding(grid=grid, in_parts=True), list[str]()
        self._device, self._options = device, options
        self._root: nn.Module | None = None

    def prepare(self, model: nn.Module, loss: LossFunction) -> tuple[nn.Module, LossFunction]:
        """The model may still be on the host: it moves to the device and becomes DTensors block by block."""
        check_shapes(model)
        refuse_sparse(model, "shard")
        root, ranks = LossModule(loss, model), self.grid.data
        shard_module(
            root,
            [model.get_submodule(name) for name in unshared_blocks(model)],
            _mesh(self.grid, self._device),
            self._options,
            before=lambda module: materialize(module, self._device, ranks),
        )
        self._root = root

        def through_root(model: nn.Module, batch: Any) -> Any:
            copy_from_first(model.buffers(), ranks)
            returned = call_root(root, batch)
            if isinstance(returned, Loss) and returned.auxiliary is not None:
                raise JobError(
                    "loss",
                    "has an auxiliary term with its own backward pass, but `shard` allows only one",
                    "remove `shard` from the plan, or add the term to the total",
                )
            return returned

        return model, through_root

    def forward_backward(self, window: Window, batch: Any, samples: int, last: bool) -> Tensor:
        return window.differentiate(batch, samples, last)

    def forward(self, call: Callable[[Any], Any], batch: Any) -> Any:
        assert self._root is not None  # prepare() came before
        return forward_only(self._root, lambda: call(batch))

    def agree(self, compute: Callable[[], Value]) -> Value:
        return first_of_all(compute, self.grid, self._device)


def _mesh(grid: Grid, device: torch.device) -> DeviceMesh:
    if grid.mesh is not None:
        return grid.mesh[DATA]
    return init_device_mesh(device.type, (grid.data.size,), mesh_dim_names=(DATA,))


def check_shapes(model: nn.Module) -> None:
    """Raises JobError for a parameter without a dimension to divide it along."""
    scalars = [name for name, each in model.named_parameters() if not each.dim()]
    if scalars:
        what = f"has scalar parameters ({', '.join(scalars[:3])}), which `shard` cannot divide over processes"
        raise JobError("model", what, "give them the shape [1], or remove `shard` from the plan")


def shard_module(
    root: nn.Module,
    blocks: Iterable[nn.Module],
    mesh: DeviceMesh,
    options: ShardOptions,
    *,
    before: Callable[[nn.Module], object] = lambda module: None,
    ignored: Iterable[nn.Parameter] = (),
) -> None:
    """Turn parameters into DTensors, in place: each block's are gathered when it computes, all others for a whole pass
    of the root. before: called with each of these modules first. ignored: parameters that stay as they are."""
    sums = options.gradients or (torch.float32 if options.parameters else None)
    of_blocks = MixedPrecisionPolicy(options.parameters, sums)
    of_root = MixedPrecisionPolicy(None, options.gradients, cast_forward_inputs=False)
    for block in blocks:
        before(block)
        fully_shard(block, mesh=mesh, reshard_after_forward=not options.keeps_gathered, mp_policy=of_blocks)
    before(root)
    fully_shard(root, mesh=mesh, mp_policy=of_root, ignored_params={*ignored})


def call_root(root: nn.Module, given: Any) -> Any:
    """What the loss inside a sharded LossModule returns. Raises JobError for a loss that computes with parameters
    without calling their layer."""
    try:
        differentiated, hidden = root(given)
    except RuntimeError as error:
        if _MIXED in str(error):
            _refuse_bypassed_layer(error)
        raise
    if isinstance(differentiated, DTensor):
        _refuse_bypassed_layer(None)
    return hidden.with_total(differentiated)


def _refuse_bypassed_layer(cause: BaseException | None) -> NoReturn:
    what = "uses a layer's parameters without calling the layer, but `shard` gathers them only in that call"
    fix = "call all layers, and use the optimizer's weight_decay for penalties on weights; or remove `shard`"
    raise JobError("loss", what, fix) from cause


def forward_only(root: nn.Module, call: Callable[[], Any]) -> Any:
    """Call without gradients, and free the gathered parameters afterwards: no backward pass does that here."""
    try:
        with torch.no_grad():  # inference mode would leave tensors that no later step can write to
            return call()
    finally:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
