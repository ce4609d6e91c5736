"""What a job needs of the devices that train it: parameters counted, activations measured, optimizer state found by a
step.

The model is built from torch's fake tensors, which have shapes and no memory, so that a model of any size can be
measured. Where the job's code needs values, it is built on this host, and the output says so. Activations are measured
at two batch sizes, cut from one real batch.

Bytes are those of storages, so that a view costs nothing; parameters and buffers are not counted. What is saved between
the two layers of a divided pair is divided over tensor ranks, except the input of the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from hasten.errors import Misconfigured
from hasten.facts.job import Job
from hasten.facts.mesh import Amount, ModelNeeds, Part
from hasten.facts.plan import Plan
from hasten.measure.flop_count import profile_flops
from hasten.measure.torch_operations import FakeTensorMode, tensors_in, tree_leaves
from hasten.techniques.common.batch_split import few_samples
from hasten.techniques.common.mesh_parts import ModelParts, is_in, parts_of
from hasten.techniques.setup import OptimizerOptions
from hasten.training.probes.brief_run import undisturbed
from hasten.training.setup.optimizers import build_optimizers
from hasten.training.setup.prepared_job import PreparedJob, prepare_job
from hasten.training.step_parts.losses import calling, mean_and_count

Watch = Callable[[int, int], object]
"""(done, whole)"""
AROUND = ""  # the name of what is in no repeated block


@dataclass(kw_only=True, slots=True)
class SavedBytes:
    """By the name of a block. summed: of activations that tensor ranks sum, forward and backward. border: of the first
    block's output."""

    whole: Counter[str] = field(default_factory=Counter[str])
    divided: Counter[str] = field(default_factory=Counter[str])
    summed: Counter[str] = field(default_factory=Counter[str])
    border: int = 0


def saved_by(forward: Callable[[], object], model: nn.Module, parts: ModelParts) -> SavedBytes:
    """Of one call of `forward`, in which the model runs once. All hooks are removed."""
    watch = _Watch(model, parts)
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            for register in watch.hooks(name, module):
                hooks.callback(register.remove)
        with saved_tensors_hooks(watch.save, lambda tensor: tensor):
            returned = forward()
    del returned
    return watch.saved


class _Watch:
    def __init__(self, model: nn.Module, parts: ModelParts) -> None:
        self.saved = SavedBytes()
        self._parts = parts
        self._blocks = list[str]()  # that run now, the innermost last
        self._between = 0  # pairs of divided layers of which the first has begun and the second has not ended
        # Kept alive, so that no address is used twice.
        self._seen = dict(_storages([*model.parameters(), *model.buffers()]))
        self._entered = dict[int, torch.UntypedStorage]()

    def hooks(self, name: str, module: nn.Module) -> Iterator[Any]:
        """In this order, as a block may be the first or the last of its layers."""
        if name in self._parts.blocks:
            yield module.register_forward_pre_hook(lambda *_: self._blocks.append(name))
        if name in self._parts.opens:
            yield module.register_forward_pre_hook(self._open, with_kwargs=True)
        if name in self._parts.closes:
            yield module.register_forward_hook(self._close)
        if name in self._parts.blocks:
            yield module.register_forward_hook(partial(self._leave, name))

    def save(self, tensor: Tensor) -> Tensor:
        for key, storage in _storages([tensor]):
            if key not in self._seen:
                self._seen[key] = storage
                in_shares = self._between > 0 and key not in self._entered
                (self.saved.divided if in_shares else self.saved.whole)[self._block] += storage.nbytes()
        return tensor

    @property
    def _block(self) -> str:
        return self._blocks[-1] if self._blocks else AROUND

    def _open(self, module: nn.Module, given: Any, named: Any) -> None:
        entering = dict(_storages(tree_leaves((given, named))))
        self._entered |= entering
        self._between += 1
        tensors = {id(each): each for each in tree_leaves((given, named)) if isinstance(each, Tensor)}
        self.saved.summed[self._block] += sum(each.nbytes for each in tensors.values() if each.requires_grad)

    def _close(self, module: nn.Module, given: Any, output: Any) -> None:
        self._between = max(self._between - 1, 0)
        self.saved.summed[self._block] += sum(each.nbytes for each in tensors_in(output))

    def _leave(self, name: str, module: nn.Module, given: Any, output: Any) -> None:
        self._blocks.pop()
        if name == self._parts.blocks[0]:
            self.saved.border += sum(each.nbytes for each in tensors_in(output))


def _storages(values: Any) -> Iterator[tuple[int, torch.UntypedStorage]]:
    """By an address that is theirs while they live, also where they have only a size and no memory."""
    for value in values:
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            yield StorageWeakRef(storage).cdata, storage


SAMPLES = 2, 4  # at which activations are measured
ON_SHAPES = "shapes only"
OF_A_MESH = ("shard", "tensor", "microbatch", "accumulation")  # techniques that a mesh says
LONGEST = 8  # elements, in any dimension, of the parameters by which optimizer state is measured
_HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    """Of one build of the model."""

    built: PreparedJob
    parts: ModelParts
    few: SavedBytes
    many: SavedBytes
    flops_per_sample: float

    def slope(self, block: str, kind: str) -> float:
        few, many = getattr(self.few, kind)[block], getattr(self.many, kind)[block]
        return (many - few) / (SAMPLES[1] - SAMPLES[0])

    def fixed(self, block: str, kind: str) -> float:
        return max(getattr(self.few, kind)[block] - SAMPLES[0] * self.slope(block, kind), 0.0)

    def per_sample(self, block: str) -> Amount:
        return Amount(self.slope(block, "whole"), self.slope(block, "divided"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Weight:
    """Of one parameter."""

    elements: int
    weight: Amount
    gradient: Amount
    state: Amount


def needs_of(
    job: Job, plan: Plan | None = None, *, name: str = "", watch: Watch = lambda done, whole: None
) -> ModelNeeds:
    """What the job needs with the plan, without those of its choices that a mesh makes. Random states are restored.
    watch: receives the passes through the model that are done, and all. Raises what building the model, or a forward
    pass, raises."""
    plan = plan or Plan()
    plan = replace(plan, choices=tuple(item for item in plan.choices if item.choice.technique not in OF_A_MESH))
    with undisturbed(_HOST):
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            return _needs(job, plan, name, mode, ON_SHAPES, watch)
        except Exception as error:  # whatever a job's own code raises for tensors without values
            why = f"{type(error).__name__}: {error}".splitlines()[0]
        return _needs(job, plan, name, nullcontext(), f"on this host, as shapes alone do not do: {why}", watch)


def _needs(job: Job, plan: Plan, name: str, mode: AbstractContextManager[Any], how: str, watch: Watch) -> ModelNeeds:
    measured = full = _measure(job, plan, name, mode, watch)
    recomputing = [item for item in plan.choices if item.choice.technique == "activation_checkpointing"]
    if recomputing:  # a part that runs backward has everything that it would save otherwise
        without = tuple(item for item in plan.choices if item not in recomputing)
        full = _measure(job, replace(plan, choices=without), name, mode, watch)
    built, parts = measured.built, measured.parts
    trained = [each.dtype for each in built.setup.model.parameters() if each.requires_grad]
    weights = _weights(job, built, parts)
    found = [_part(each, weights, measured, full) for each in (*parts.blocks, AROUND)]
    return ModelNeeds(
        parameters=sum(each.elements for each in weights.values()),
        batch_size=built.batch_size,
        around=found[-1],
        blocks=tuple(found[:-1]),
        divisible=parts.sizes,
        border_bytes=(measured.many.border - measured.few.border) / (SAMPLES[1] - SAMPLES[0]),
        buffer_bytes=sum(each.nbytes for each in built.setup.model.buffers()),
        short_weights=any(each.itemsize == 2 for each in trained),
        flops_per_sample=full.flops_per_sample,
        how=how,
    )


def _measure(job: Job, plan: Plan, name: str, mode: AbstractContextManager[Any], watch: Watch) -> _Measured:
    def model() -> nn.Module:
        with mode:
            return job.model()

    built = prepare_job(replace(job, model=model), plan, lambda options: [], name=name)
    setup, parts = built.setup, parts_of(built.setup.model)
    setup.model.train()
    batches = [few_samples(setup.sample, samples) for samples in SAMPLES]

    def forward(batch: Any) -> Any:
        return calling(_HOST, setup.step.autocast)(job.loss, setup.model, batch)

    def both_ways() -> None:
        mean_and_count(forward(batches[0]), SAMPLES[0])[0].backward()

    with mode:
        found = list[SavedBytes]()
        for number, batch in enumerate(batches, start=1):
            found.append(saved_by(partial(forward, batch), setup.model, parts))
            watch(number, len(batches) + 1)
        few, many = found
        flops = profile_flops(both_ways, setup.model, SAMPLES[0])
        setup.model.zero_grad(set_to_none=True)
    if flops.flops_per_sample is None:
        what = f"the arithmetic of the model is unknown: torch's FLOP counter fails on it ({flops.failed})"
        raise Misconfigured(what, where=name, fix="compare meshes by short runs, as no plan can be made without it")
    return _Measured(built=built, parts=parts, few=few, many=many, flops_per_sample=flops.flops_per_sample)


def _weights(job: Job, built: PreparedJob, parts: ModelParts) -> dict[str, _Weight]:
    """By name. The model cannot be used for anything else afterwards."""
    model = built.setup.model
    sizes = {name: (each.numel(), each.nbytes, each.requires_grad) for name, each in model.named_parameters()}
    tied = _tied(model)
    state = state_bytes(job, model, built.setup.optimizer)
    found = dict[str, _Weight]()
    for name, (elements, size, trained) in sizes.items():
        amount = partial(Amount, 0.0) if name in parts.divided and name not in tied else Amount
        gradient = amount(size) if trained else Amount()
        found[name] = _Weight(elements=elements, weight=amount(size), gradient=gradient, state=amount(state[name]))
    return found


def _tied(model: nn.Module) -> frozenset[str]:
    """Names of parameters that several modules share."""
    named = [(name, id(each)) for name, each in model.named_parameters(remove_duplicate=False)]
    count = Counter(key for _, key in named)
    return frozenset(name for name, key in named if count[key] > 1)


def _part(block: str, weights: Mapping[str, _Weight], measured: _Measured, full: _Measured) -> Part:
    parts = measured.parts
    own = {name: each for name, each in weights.items() if _block_of(name, parts.blocks) == block}
    in_units = dict[str, Amount]()
    root = Amount()
    for name, each in own.items():
        unit = min((unit for unit in parts.units if is_in(name, unit)), key=len, default=None)  # the outermost
        if unit is None:
            root += each.weight
        else:
            in_units[unit] = in_units.get(unit, Amount()) + each.weight
    saved = measured.per_sample(block)
    without = full.per_sample(block)
    return Part(
        name=block,
        weights=_sum(each.weight for each in own.values()),
        gradients=_sum(each.gradient for each in own.values()),
        state=_sum(each.state for each in own.values()),
        root=root,
        unit=max(in_units.values(), key=lambda amount: amount.total, default=Amount()),
        fixed=Amount(measured.fixed(block, "whole"), measured.fixed(block, "divided")),
        per_sample=saved,
        recomputed=Amount(max(without.whole - saved.whole, 0.0), max(without.divided - saved.divided, 0.0)),
        summed=Amount(full.slope(block, "summed"), 0.0),
    )


def _block_of(name: str, blocks: Iterable[str]) -> str:
    return next((block for block in blocks if is_in(name, block)), AROUND)


def _sum(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())


# ── optimizer state ─────────────────────────────────────────────────────────────────────────────────────────────────


def state_bytes(job: Job, model: nn.Module, options: OptimizerOptions) -> dict[str, float]:
    """Bytes, by the names of the model's parameters. They are replaced by small ones, so the model cannot be used for
    anything else afterwards.

    A tensor of state that has a small parameter's length in a dimension is assumed to have the parameter's length
    there, as moments and the factors of their approximations do.
    """
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    _replace_parameters(model)
    optimizers = build_optimizers(job, model, options)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    found = dict[str, float]()
    for name, parameter in model.named_parameters():
        states = [optimizer.state[parameter] for optimizer in optimizers if parameter in optimizer.state]
        found[name] = sum(
            _scaled_bytes(each, parameter, shapes[name]) for each in tensors_in([dict(state) for state in states])
        )
    return found


def _replace_parameters(model: nn.Module) -> None:
    """Tied ones stay tied."""
    made = dict[int, nn.Parameter]()
    for module in model.modules():
        for name, own in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(own) not in made:
                size = [min(length, LONGEST) for length in own.shape]
                values = torch.ones(size, dtype=own.dtype)
                made[id(own)] = nn.Parameter(values, requires_grad=own.requires_grad)
            setattr(module, name, made[id(own)])


def _scaled_bytes(state: Tensor, small: Tensor, shape: tuple[int, ...]) -> float:
    if state.dim() != small.dim():
        return state.nbytes
    elements = 1
    for length, short, long in zip(state.shape, small.shape, shape, strict=True):
        elements *= long if length == short else length
    return elements * state.element_size()
