"""Replace layers with fused operators that pass over memory once.

What it does: replaces the forward of these layers with an operator that computes the same in one pass, forward and
backward. `true` replaces all kinds, an array of names only those. The layers stay the same objects with the same names
and parameters, so checkpoints do not change.

  * "gelu": `GELU`, exact or by tanh.
  * "layer_norm": `LayerNorm` over the last dimension.
  * "softmax": `Softmax` over one dimension.
  * "attention": layers whose forward method calls torch's
    `scaled_dot_product_attention` by that name; in bfloat16, without masks or
    dropout.

`"traced"` also replaces functions, such as `functional.gelu`, or `functional.cross_entropy` in a model that computes
its own loss. It fuses functions that follow each other too: a sum and its LayerNorm, a linear layer and its GELU. The
front end of torch.compile traces the model at its first step, and again when something that it relied on has changed.

Options: with "traced", `dropout = true` also fuses a dropout after a GELU.

Why it is faster: a formula composed of several operations reads and writes memory for each of them. Some of torch's
operations also compute more than they need, such as a hyperbolic tangent where a polynomial is enough.

When it loses: on small tensors, where calling the operator costs more than it saves; and with `compile`, which fuses
such operations itself and cannot fuse these operators. Tracing takes seconds.

What it changes: rounding only ("equal up to rounding"). `dropout = true` draws other random numbers for the same seed
("same statistics").

Limits: these operators have no second derivative and no forward-mode derivative; both raise an error. On a CPU they are
C++. On CUDA, GELU and softmax are Triton, and the others stay torch's. Attention needs a CPU with AVX512-BF16 and
without AMX. A layer is not replaced where its operator has no form for the device, and a notice says why. Subclasses of
torch's layers are skipped, as they may compute something else. A plan cannot combine "traced" with `compile`,
`activation_checkpointing`, `shard`, `tensor` or `pipeline`.

Example:

    [[choice]]
    technique = "fused_operators"
    value = ["gelu", "layer_norm"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.kernels import graph_rewrite
from hasten.techniques.common.operator_layers import FUNCTIONS, FUSED_LAYERS, functions_called, reasons_without_form
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import CompileOptions, Setup

TRACED = "traced"


def find(model: nn.Module, names: Sequence[str] = tuple(FUSED_LAYERS)) -> dict[str, list[nn.Module]]:
    """Layers that these operators can replace, by the operator's name; without layers whose forward is replaced."""
    found: dict[str, list[nn.Module]] = {name: [] for name in names}
    for module in model.modules():
        for name in names:
            if "forward" not in vars(module) and FUSED_LAYERS[name].fits(module):
                found[name].append(module)
    return {name: layers for name, layers in found.items() if layers}


def replace_forward(layers: Mapping[str, Sequence[nn.Module]]) -> None:
    """Make the layers compute by the operators of these names, in place. A deep copy of a layer computes by itself."""
    for name, some in layers.items():
        for layer in some:
            layer.forward = partial(_forward, name, layer)


def _forward(name: str, layer: nn.Module, /, *given: Any, **named: Any) -> Any:
    return FUSED_LAYERS[name].forward(layer, *given, **named)


def _drops(model: nn.Module) -> bool:
    layers = any(isinstance(module, nn.Dropout) and module.p for module in model.modules())
    return layers or "dropout" in functions_called(model)


def applies(setup: Setup) -> Yes | No:
    names = find(setup.model).keys() | (functions_called(setup.model) & FUNCTIONS.keys())
    if not names:
        kinds = ", ".join(each.kind for each in FUSED_LAYERS.values())
        return No(f"the model has no layer of these kinds, and calls none of their functions: {kinds}")
    reasons = reasons_without_form(sorted(names), setup.device)
    return Yes() if len(reasons) < len(names) else No(next(iter(reasons.values())))


def candidates(setup: Setup) -> Sequence[Choice]:
    fused = partial(Choice, technique="fused_operators")
    choices = [fused(value=TRACED, preserves=Preserves.ROUNDING)]
    layers = find(setup.model)
    if layers.keys() - reasons_without_form(layers, setup.device):
        choices.insert(0, fused(value=True, preserves=Preserves.ROUNDING))
    if _drops(setup.model):
        choices.append(fused(value=TRACED, options={"dropout": True}, preserves=Preserves.STATISTICS))
    return choices


def apply(setup: Setup, choice: Choice) -> None:
    drops = choice.options.get("dropout", False)
    names = [*FUSED_LAYERS] if choice.value == TRACED else _names(choice.value)
    unknown = choice.options.keys() - ({"dropout"} if choice.value == TRACED else set())
    if names is None or unknown or not isinstance(drops, bool):
        ways = f'true, "{TRACED}" (option: dropout, true or false), or an array of {", ".join(FUSED_LAYERS)}'
        raise PlanError(f"the plan asks for {choice}", where="fused_operators", fix=f"write {ways}; or remove it")
    layers = find(setup.model, names)
    reasons = reasons_without_form(names if choice.value == TRACED else layers, setup.device)
    if choice.value == TRACED and len(reasons) < len(names):
        wanted = (*graph_rewrite.NAMES, "bias_gelu_dropout") if drops else graph_rewrite.NAMES
        setup.compile = CompileOptions(backend=graph_rewrite.FusedOperators(wanted))
        return
    for reason in dict.fromkeys(reasons.values()):
        named = ", ".join(name for name in reasons if reasons[name] == reason)
        setup.notices.append(f"fused_operators: {named}: these layers were not replaced: {reason}")
    usable = {name: some for name, some in layers.items() if name not in reasons}
    replace_forward(usable)
    replaced = ", ".join(f"{len(some)} by {name}" for name, some in usable.items())
    if replaced or not reasons:
        setup.notices.append(f"fused_operators replaced layers: {replaced or 'the model has none of these kinds'}")


def _names(value: Value) -> list[str] | None:
    """The operators that a plan names; None where it names none that exist."""
    if value is True:
        return [*FUSED_LAYERS]
    if isinstance(value, list) and value and all(isinstance(each, str) and each in FUSED_LAYERS for each in value):
        return [*map(str, value)]
    return None


TECHNIQUE = Technique(
    name="fused_operators",
    stage=Stage.MODEL,
    treats=Symptom.MANY_SMALL_OPERATIONS,
    values='true, "traced", or an array of operators such as ["gelu"]; options: dropout (true or false)',
    costs=("compiles each operator once on a machine, for a few seconds",),
    source="https://arxiv.org/abs/1606.08415",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
