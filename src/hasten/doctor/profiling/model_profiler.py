"""A profile of a job's model: a few real steps are trained, measured and discarded.

torch.fx shows what flows where; hooks in real steps show what is called and what gets a gradient; counters of whole
steps show arithmetic and memory. Random states are restored; the job's schedule and length are ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from torch import Tensor, nn

from hasten.errors import Misconfigured
from hasten.facts.job import Job
from hasten.facts.plan import Plan
from hasten.facts.profiles import Layer, ModelProfile
from hasten.measure.flop_count import profile_flops
from hasten.measure.memory_profile import Kind, profile_memory
from hasten.techniques.conv_bn_bias import find_useless_biases
from hasten.training.probes.brief_run import brief_run, whole_step
from hasten.training.run import Run
from hasten.users_code import short

STEPS = 3
_PROFILED_STEPS = 4  # two for the arithmetic, two for memory
_SIZES = ("in_features", "out_features", "in_channels", "out_channels", "embedding_dim", "num_embeddings")


def profile_model(job: Job, plan: Plan | None = None, *, name: str = "") -> ModelProfile:
    """Train the job for a few steps by the plan. Raises what building or training the job raises."""
    unjudged = replace(job, stop=None, keep=None, evaluate_every=None, metrics={}, valid=None)
    with brief_run(unjudged, plan, name=name, steps=STEPS + _PROFILED_STEPS) as run:
        return _profile(run)


def _profile(run: Run) -> ModelProfile:
    biases, untraceable = None, ""
    try:
        biases = tuple(pair.convolution for pair in find_useless_biases(run.model))
    except Misconfigured as error:
        untraceable = error.what
    step, machine = whole_step(run), run.setup.machine
    with _hooked(run.model) as (called, given):
        for _ in range(STEPS):
            step()
    flops = profile_flops(step, run.model, run.loader.first_share)
    memory = profile_memory(step, run.model, run.optimizers)
    shares = {name: each / max(flops.flops_per_sample or 0, 1) for name, each in flops.by_module.items()}
    kept = dict(memory.by_module)
    return ModelProfile(
        device=str(run.device),
        precision=str(run.setup.step.autocast or next(run.model.parameters()).dtype).removeprefix("torch."),
        steps=STEPS,
        layers=tuple(_layers(run.model, called, given, shares, kept)),
        useless_biases=biases,
        untraceable=untraceable,
        flops_per_sample=flops.flops_per_sample,
        memory_bytes=machine.accelerator_memory_bytes if run.device.type == "cuda" else machine.memory_bytes,
        peak_bytes=memory.peak_bytes,
        activation_bytes=memory.by_kind[Kind.ACTIVATIONS],
        uncounted=flops.failed,
    )


@contextmanager
def _hooked(model: nn.Module) -> Iterator[tuple[set[nn.Module], set[Tensor]]]:
    """The modules whose forward runs inside, and the parameters that get a gradient."""
    called, given = set[nn.Module](), set[Tensor]()
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.callback(module.register_forward_pre_hook(lambda module, _: called.add(module)).remove)
        for parameter in model.parameters():
            if parameter.requires_grad:
                hooks.callback(parameter.register_post_accumulate_grad_hook(given.add).remove)
        yield called, given


def _layers(
    model: nn.Module, called: set[nn.Module], given: set[Tensor], shares: dict[str, float], kept: dict[str, int]
) -> Iterator[Layer]:
    """Modules with parameters of their own, with saved activations, or with arithmetic and no module inside."""
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        is_leaf = not any(True for _ in module.children())
        if not own and not kept.get(name) and not (is_leaf and shares.get(name)):
            continue
        path, line = _defined_at(model, name)
        is_called = module in called or any(each in given for each in own.values())
        yield Layer(
            name=name,
            kind=type(module).__name__,
            path=path,
            line=line,
            parameters=sum(each.numel() for each in own.values()),
            sizes=tuple((size, value) for size in _SIZES if isinstance(value := getattr(module, size, None), int)),
            is_called=is_called,
            without_gradient=tuple(
                each for each, own_one in own.items() if own_one.requires_grad and own_one not in given and is_called
            ),
            flops_share=shares.get(name, 0.0) if is_leaf else 0.0,
            activation_bytes=kept.get(name, 0),
        )


def _defined_at(model: nn.Module, name: str) -> tuple[str, int]:
    """Where the class of the nearest module around it that is not of torch is defined."""
    parts = name.split(".") if name else []
    for length in range(len(parts), -1, -1):
        owner = type(model.get_submodule(".".join(parts[:length])))
        if owner.__module__.partition(".")[0] != "torch":
            try:
                return short(inspect.getsourcefile(owner) or ""), inspect.getsourcelines(owner)[1]
            except (OSError, TypeError):  # made where there is no source
                return "", 0
    return "", 0
