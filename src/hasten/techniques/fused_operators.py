"""Exchange layers for operators of hasten's own that pass over memory once.

What it does: finds layers of the kinds below, and lets them compute by an operator that does the same in one pass,
forward and backward. `true` exchanges all kinds; an array of names those. The layers stay the same objects
under the same names, with the same parameters: a checkpoint knows nothing of it.

* "gelu": `GELU`, exact or by tanh.
* "layer_norm" and "rms_norm": `LayerNorm` and `RMSNorm` over the last dimension.
* "softmax": `Softmax` over one dimension.
* "attention": layers of any type whose forward method names torch's `scaled_dot_product_attention`; and
  "multihead_attention": `MultiheadAttention`. Both in bfloat16, without masks or dropout, on processors with
  AVX512-BF16 and without AMX; all else stays torch's.

`"traced"` finds functions as well, `functional.gelu` for one, the cross-entropy of a model that computes its loss, and
what follows each other: a sum and its LayerNorm, a linear layer and its GELU. torch.compile's front end traces the
model for that at its first step, and again where something that the trace relied on has changed; the graph is then
called as it stands, and no code is generated. With the option `dropout = true` a dropout after GELU is in that pass,
and draws other numbers of the same seed.

Why it is faster: a formula that is composed of operations reads and writes memory for each of them, and some operations
of torch compute more than they have to, such as a hyperbolic tangent where a polynomial does.

When it loses: on small tensors, where to call an operator of one's own costs more than it saves; and with `compile`,
which fuses such operations with their neighbours, and takes these as they are.

What it gave up: nothing but rounding. Gradients of gradients through these operators raise an error, and so does
forward-mode differentiation. Tracing takes seconds.

On a processor the operators are C++, on a CUDA card Triton. What has no form where the job runs stays as it is, with
the reason said. Subclasses of torch's layers are left alone, for they may compute something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.machine import Machine
from hasten.kernels import graphs
from hasten.techniques._exchanges import EXCHANGES, calls_functions, functions_named
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import CompileOptions, Setup

TRACED = "traced"


def find(model: nn.Module, names: Sequence[str] = tuple(EXCHANGES)) -> dict[str, list[nn.Module]]:
    """Layers that can be exchanged, by the names of operators; those that do not compute otherwise already."""
    found: dict[str, list[nn.Module]] = {name: [] for name in names}
    for module in model.modules():
        for name in names:
            if "forward" not in vars(module) and EXCHANGES[name].fits(module):
                found[name].append(module)
    return {name: layers for name, layers in found.items() if layers}


def exchange(layers: Mapping[str, Sequence[nn.Module]]) -> None:
    """Let them compute by the operators of these names, in place. A deep copy of a layer computes by itself."""
    for name, some in layers.items():
        for layer in some:
            layer.forward = partial(_forward, name, layer)


def _forward(name: str, layer: nn.Module, /, *given: Any, **named: Any) -> Any:
    return EXCHANGES[name].compute(layer, *given, **named)


def _without_form(setup: Setup, names: Iterable[str]) -> dict[str, str]:
    """Those that have no form of their own on the setup's device, and why."""
    reasons = {name: EXCHANGES[name].why_plain(setup.device) for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _drops(model: nn.Module) -> bool:
    layers = any(isinstance(module, nn.Dropout) and module.p for module in model.modules())
    return layers or "dropout" in functions_named(model)


def applies(setup: Setup, machine: Machine) -> Yes | No:
    layers = find(setup.model)
    calls = calls_functions(setup.model, setup.device)
    if not layers and not calls:
        kinds = ", ".join(each.kind for each in EXCHANGES.values())
        return No(f"the model has no layer of these kinds: {kinds}; nor does it call their functions")
    names = EXCHANGES if calls else layers
    reasons = _without_form(setup, names)
    return Yes() if len(reasons) < len(names) else No(next(iter(reasons.values())))


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    fused = partial(Choice, technique="fused_operators")
    choices = [fused(value=TRACED, preserves=Preserves.ROUNDING)]
    layers = find(setup.model)
    if layers.keys() - _without_form(setup, layers):
        choices.insert(0, fused(value=True, preserves=Preserves.ROUNDING))
    if _drops(setup.model):
        choices.append(fused(value=TRACED, options={"dropout": True}, preserves=Preserves.STATISTICS))
    return choices


def apply(setup: Setup, choice: Choice) -> None:
    drops = choice.options.get("dropout", False)
    names = [*EXCHANGES] if choice.value == TRACED else _names(choice.value)
    unknown = choice.options.keys() - ({"dropout"} if choice.value == TRACED else set())
    if names is None or unknown or not isinstance(drops, bool):
        ways = f'true, "{TRACED}" (option: dropout, true or false), or an array of {", ".join(EXCHANGES)}'
        raise PlanError(f"the plan asks for {choice}", fix=f"write {ways}; or leave it out")
    layers = find(setup.model, names)
    reasons = _without_form(setup, names if choice.value == TRACED else layers)
    if choice.value == TRACED and len(reasons) < len(names):
        wanted = (*graphs.NAMES, "bias_gelu_dropout") if drops else graphs.NAMES
        setup.compile = CompileOptions(exchanging=graphs.Exchanging(wanted))
        return
    for reason in dict.fromkeys(reasons.values()):
        named = ", ".join(name for name in reasons if reasons[name] == reason)
        setup.notices.append(f"fused_operators: {named}: layers compute as they did, for {reason}")
    usable = {name: some for name, some in layers.items() if name not in reasons}
    exchange(usable)
    told = ", ".join(f"{len(some)} by {name}" for name, some in usable.items())
    if told or not reasons:
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
    values='true, "traced" (option: dropout) or an array of operators, such as ["gelu"]',
    costs=("compiles each operator once on a machine, in a second or a few",),
    source="https://arxiv.org/abs/1606.08415",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
