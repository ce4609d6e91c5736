"""Exchange layers for operators of hasten's own that pass over memory once.

What it does: finds layers of the kinds below by their type, and lets them compute by an operator that does the same in
one pass, forward and backward. `true` exchanges all kinds; an array of names those. The layers stay the same objects
under the same names, with the same parameters: a checkpoint knows nothing of it.

* "gelu": `GELU`, exact or by tanh.
* "layer_norm" and "rms_norm": `LayerNorm` and `RMSNorm` over the last dimension.
* "softmax": `Softmax` over one dimension.

Why it is faster: a formula that is composed of operations reads and writes memory for each of them, and some operations
of torch compute more than they have to, such as a hyperbolic tangent where one exponential does.

When it loses: on small tensors, where to call an operator of one's own costs more than it saves; and with `compile`,
which fuses such operations with their neighbours, and takes these as they are.

What it gave up: nothing but rounding. Gradients of gradients are not to be had through these operators.

Where no compiler is found, and away from processors, it is refused with the reason. Subclasses are left alone, for they
may compute something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.machine import Machine
from hasten.techniques._exchanges import EXCHANGES
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup


def find(model: nn.Module, names: Sequence[str] = tuple(EXCHANGES)) -> dict[str, list[nn.Module]]:
    """Layers that can be exchanged, by the names of operators; those that do not compute otherwise already."""
    found: dict[str, list[nn.Module]] = {name: [] for name in names}
    for module in model.modules():
        for name in names:
            exchanged, known = "forward" in vars(module), type(module) is EXCHANGES[name].kind
            if known and not exchanged and EXCHANGES[name].fits(module):
                found[name].append(module)
    return {name: layers for name, layers in found.items() if layers}


def exchange(layers: Mapping[str, Sequence[nn.Module]]) -> None:
    """Let them compute by the operators of these names, in place. A deep copy of a layer computes by itself."""
    for name, some in layers.items():
        for layer in some:
            layer.forward = partial(_forward, name, layer)


def _forward(name: str, layer: nn.Module, /, *given: Any, **named: Any) -> Tensor:
    return EXCHANGES[name].compute(layer, *given, **named)


def _refusal(setup: Setup, names: Sequence[str]) -> str | None:
    if setup.device.type != "cpu":
        return f"these operators have no compiled form for {setup.device.type} yet"
    return next((reason for name in names if (reason := EXCHANGES[name].why_plain())), None)


def applies(setup: Setup, machine: Machine) -> Yes | No:
    layers = find(setup.model)
    if not layers:
        kinds = ", ".join(each.kind.__name__ for each in EXCHANGES.values())
        return No(f"the model has no layer of these kinds: {kinds}")
    reason = _refusal(setup, [*layers])
    return Yes() if reason is None else No(reason)


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="fused_operators", value=True, preserves=Preserves.ROUNDING)]


def apply(setup: Setup, choice: Choice) -> None:
    names = _names(choice.value)
    if names is None or choice.options:
        fix = f"write true, or an array of {', '.join(EXCHANGES)}, without options; or leave it out"
        raise PlanError(f"the plan asks for {choice}", fix=fix)
    layers = find(setup.model, names)
    reason = _refusal(setup, [*layers])
    if reason is not None:
        setup.notices.append(f"fused_operators: layers compute as they did, for {reason}")
        return
    exchange(layers)
    told = ", ".join(f"{len(some)} by {name}" for name, some in layers.items())
    setup.notices.append(f"fused_operators: {told or 'no layer of these kinds is there'}")


def _names(value: Value) -> list[str] | None:
    """None for what makes no sense."""
    if value is True:
        return [*EXCHANGES]
    if isinstance(value, list) and value and all(isinstance(each, str) and each in EXCHANGES for each in value):
        return [*map(str, value)]
    return None


TECHNIQUE = Technique(
    name="fused_operators",
    stage=Stage.MODEL,
    treats=Symptom.MANY_SMALL_OPERATIONS,
    values='true or an array of operators, such as ["gelu"]',
    costs=("compiles each operator once on a machine, in less than a second",),
    source="https://arxiv.org/abs/1606.08415",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
