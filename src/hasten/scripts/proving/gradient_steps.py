"""The gradients and updates of a script's first steps, in the process of a trial.

Eight updates are held back, so that every arm has the same weights in every step: the gradients that the optimizers
would get are written, and removed for the update, and an optimizer skips a parameter without a gradient. The next three
updates are made, in every arm by the same gradients, and the weights after them are written.

Nearby arms compute with another number of threads, from the script's first line on: what it computes before training,
as a teacher that it solves for or initial weights, is rounded differently by a plan too.

Of the script in float64, modules and their inputs are converted where the optimizer is made: the trained one, and those
that have a name there, as a discriminator that reads what a generator makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hasten.measure.float64_reference import Lifted, rounding, terms_counted
from hasten.scripts.observing.named_modules import all_frames, modules_named_in
from hasten.scripts.patching import replaced
from hasten.scripts.proving.dropout import dropout_removed, remove_from_layers
from hasten.training.weights.tensor_file import read_tensors, write_tensors

HELD_BACK, MADE = 8, 3  # updates
PLAIN, FLOAT64, NEARBY = "plain", "float64", "nearby"  # arms; any other name is that of a plan
NEIGHBOURS = 2  # arms of nearby weights
FLOAT64_STEP = 4  # of how many steps of the script one takes the time, on a CPU: 2 of a matrix product, 6 of others
STEPS_OF_PROOF = (2 + FLOAT64_STEP) * (HELD_BACK + MADE) + NEIGHBOURS * HELD_BACK
"""Whose time a proof of one plan takes, with its references."""
PROCESSES_OF_PROOF = 3 + NEIGHBOURS  # that it starts


@dataclass(kw_only=True)
class GradientSteps:
    """folder: of all arms' files. arm: its name; that of nearby weights ends with a number. terms: of the longest sum,
    which the baseline counts. writes: gradients and weights, which are the same on all ranks."""

    folder: Path
    arm: str
    terms: int = 0
    writes: bool = True
    module: nn.Module | None = None
    is_in_torchscript: bool = False  # a part of it that is trained, which cannot compute in float64
    updates: int = 0
    _counts: dict[nn.Module, int] = field(default_factory=dict[nn.Module, int])
    _held: list[tuple[Tensor, Tensor | None]] = field(default_factory=list[tuple[Tensor, Tensor | None]])
    _resources: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Before the script."""
        dropout_removed(self._resources)
        if self.arm == FLOAT64:  # what all ranks reduce has the dtype that the parameters had when they were wrapped
            self._resources.enter_context(replaced(DistributedDataParallel, "__init__", _wrapped_in_float64))
        if self.arm.startswith(NEARBY):
            torch.set_num_threads(torch.get_num_threads() // 2 or 2)  # sums are split between threads

    def prepare(self, module: nn.Module) -> None:
        """The trained module, when the script has made its optimizer."""
        self.module = module
        compiled = (each for each in module.modules() if isinstance(each, torch.jit.ScriptModule))
        self.is_in_torchscript = any(any(_trained(each)) for each in compiled)
        if self.is_in_torchscript:
            return
        enter = self._resources.enter_context
        remove_from_layers(module)
        self._resources.callback(register_optimizer_step_pre_hook(self._before_update).remove)
        self._resources.callback(register_optimizer_step_post_hook(self._after_update).remove)
        if self.arm == FLOAT64:
            compute_in_float64(module)
            enter(replaced(torch, "randn_like", _drawn(torch.randn)))
            enter(replaced(torch, "rand_like", _drawn(torch.rand)))
            for name in ("exponential_", "normal_", "uniform_"):  # by which torch.distributions draws
                enter(replaced(Tensor, name, _filled))
            enter(Lifted())
        if self.arm == PLAIN:
            self._counts = terms_counted(module)
        if self.arm.startswith(NEARBY):
            own = torch.Generator().manual_seed(int(self.arm.removeprefix(NEARBY)))  # the script draws its own numbers
            with torch.no_grad():
                for each in module.parameters():
                    if each.is_floating_point():
                        noise = torch.randn(each.shape, generator=own, dtype=each.dtype).to(each.device)
                        each.mul_(1 + 2 * rounding(each.dtype, math.sqrt(self.terms)) * noise)

    @property
    def is_complete(self) -> bool:
        most = HELD_BACK if self.arm.startswith(NEARBY) else HELD_BACK + MADE
        return self.updates >= most

    def updated(self) -> None:
        """After every update of the main optimizer."""
        assert self.module is not None
        self.updates += 1
        if self.writes and self.updates >= HELD_BACK and not self.arm.startswith(NEARBY):
            weights = {name: each.detach() for name, each in _trained(self.module)}
            write_tensors(self._file("weights", self.updates - HELD_BACK), weights)

    def longest_sum(self) -> int:
        """Of one step: eight or more were counted."""
        return max(1, max(self._counts.values(), default=1) // self.updates)

    def _before_update(self, optimizer: Optimizer, args: Any, named: Any) -> Any:
        """Of a step with a closure, which computes the gradients, the closure is replaced."""
        closure = named.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._before_gradients_are_used(optimizer)
            return None

        def computed() -> Any:
            loss = closure()
            self._before_gradients_are_used(optimizer)
            return loss

        return args[:1], {**named, "closure": computed}

    def _before_gradients_are_used(self, optimizer: Optimizer) -> None:
        if self.updates < HELD_BACK:
            self._hold_back(optimizer)
        else:
            self._give(optimizer)

    def _hold_back(self, optimizer: Optimizer) -> None:
        if self.writes:
            self._write_gradients(optimizer)
        for group in optimizer.param_groups:
            for each in group["params"]:
                self._held.append((each, each.grad))
                each.grad = None

    def _write_gradients(self, optimizer: Optimizer) -> None:
        assert self.module is not None
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        mine = [(name, each) for name, each in _trained(self.module) if id(each) in held and each.grad is not None]
        path = self._file("gradients", self.updates)
        before = read_tensors(path) if path.exists() else {}
        write_tensors(path, {**before, **{name: _whole(each) for name, each in mine}})

    def _after_update(self, optimizer: Optimizer, args: Any, named: Any) -> None:
        """A script can read its gradients after the update."""
        for parameter, gradient in self._held:
            parameter.grad = gradient
        self._held.clear()

    def _give(self, optimizer: Optimizer) -> None:
        assert self.module is not None
        given = read_tensors(self.folder / f"{PLAIN}-gradients-{self.updates - HELD_BACK}.safetensors")
        for name, each in _trained(self.module):
            each.grad = given[name].to(each) if name in given else None

    def _file(self, what: str, step: int) -> Path:
        return self.folder / f"{self.arm}-{what}-{step}.safetensors"


def compute_in_float64(module: nn.Module) -> None:
    """From now on: it, those that have names in the running functions, and all their parts, which a script can call.
    Modules of TorchScript keep the dtype of their inputs, as their parts have no hooks."""
    named = (each for frame in all_frames() for _, each in modules_named_in(frame))
    outer = {module, *(each for each in named if not isinstance(each, torch.jit.ScriptModule))}
    for each in outer:
        each.double()
    for part in {part for each in outer for part in each.modules()}:
        if not isinstance(part, torch.jit.ScriptModule):
            part.register_forward_pre_hook(_inputs_in_float64, with_kwargs=True)


def _trained(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, each) for name, each in module.named_parameters() if each.requires_grad)


def _whole(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.detach() if gradient.layout == torch.strided else gradient.detach().to_dense()


def _wrapped_in_float64(
    original: Callable[..., None], made: nn.Module, module: nn.Module, *args: Any, **named: Any
) -> None:
    original(made, module.double(), *args, **named)


def _inputs_in_float64(module: nn.Module, args: Any, named: Any) -> Any:
    return _in_float64(args), _in_float64(named)


def _in_float64(value: Any) -> Any:
    """Its tensors stay on their device and in their graph: one module's output can be another's input."""
    match value:
        case Tensor():
            return value.double() if value.is_floating_point() else value
        case dict():
            table: dict[Any, Any] = value
            return {key: _in_float64(each) for key, each in table.items()}
        case tuple() | list():
            items = [_in_float64(each) for each in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        case _:
            return value


def _drawn(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The numbers that the script draws like a float32 tensor, which is of float64 now."""

    def like(original: Callable[..., Tensor], tensor: Tensor, *args: Any, **named: Any) -> Tensor:
        if tensor.dtype != torch.float64:
            return original(tensor, *args, **named)
        return draw(tensor.shape, device=tensor.device).double()

    return like


def _filled(original: Callable[..., Tensor], tensor: Tensor, *args: Any, **named: Any) -> Tensor:
    """With the numbers that the script draws into a float32 tensor."""
    if tensor.dtype != torch.float64:
        return original(tensor, *args, **named)
    drawn = torch.empty(tensor.shape, device=tensor.device)
    return tensor.copy_(original(drawn, *args, **named))
