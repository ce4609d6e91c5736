"""Which layers of a model can be divided without being named in the plan: a table of kinds of modules.

A kind is recognised by its class, or by its attributes, as an attention with one matrix for queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from torch import nn

from hasten.parallel.tensor.layer_divisions import Columns, Division, Heads, Rows, Scores, Words, qualified

_ELEMENTWISE = (  # may lie between two linear layers
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.Softplus),
    *(nn.Dropout, nn.Identity),
)


def is_linear(module: Any) -> bool:
    """Whether it is torch's linear layer, not a subclass, and not parametrized."""
    own = "weight" in dict(module.named_parameters(recurse=False)) if type(module) is nn.Linear else False
    return own and "forward" not in vars(module)


def is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_packed(module: Any) -> bool:
    """Whether an attention has one packed projection for queries, keys and values, and appends nothing to sequences."""
    if type(module) is not nn.MultiheadAttention or module.bias_k is not None or module.add_zero_attn:
        return False
    return {"in_proj_weight", "out_proj.weight"} <= dict(module.named_parameters()).keys()


def vocabulary_of(module: nn.Module) -> Scores | Words | None:
    """Of embeddings torch's own, which neither change their vectors in a lookup, nor count the words of a batch."""
    if is_linear(module):
        return Scores()
    plain = type(module) is nn.Embedding and "weight" in dict(module.named_parameters(recurse=False))
    return Words() if plain and module.max_norm is None and not (module.scale_grad_by_freq or module.sparse) else None


def _is_encoder_layer(module: Any) -> bool:
    kind = nn.TransformerEncoderLayer
    if not isinstance(module, kind) or type(module).forward is not kind.forward or not is_packed(module.self_attn):
        return False
    return is_linear(module.linear1) and is_linear(module.linear2)


def _is_attention_by_one_matrix(module: Any) -> bool:
    first: Any = getattr(module, "query_key_value", None)
    last: Any = getattr(module, "mix", None)
    if not (is_linear(first) and is_linear(last)):
        return False
    return is_number(getattr(module, "heads", None)) and first.out_features == 3 * last.in_features


# (whether a module is of the kind, path in the module -> how the layer there is divided; "" is the module itself)
TABLE: tuple[tuple[Callable[[nn.Module], bool], Mapping[str, Division]], ...] = (
    (_is_encoder_layer, {"self_attn": Heads(), "linear1": Columns(), "linear2": Rows()}),
    (_is_attention_by_one_matrix, {"query_key_value": Columns(parts=3), "mix": Rows(), "": Heads("heads")}),
)


def divisible(model: nn.Module) -> dict[str, Division]:
    """The layers of the table, and pairs of linear layers in a Sequential, by name."""
    found = dict[str, Division]()
    for name, module in model.named_modules():
        for path, division in _divisions_of(module):
            found.setdefault(qualified(name, path) if path else name, division)
    return found


def _divisions_of(module: nn.Module) -> Iterator[tuple[str, Division]]:
    for is_of_kind, divisions in TABLE:
        if is_of_kind(module):
            yield from divisions.items()
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        yield from _pairs(module)


def _pairs(module: nn.Sequential) -> Iterator[tuple[str, Division]]:
    """Two linear layers, the first of which has more outputs than inputs, with element-wise layers between them."""
    layers = [(name, each) for name, each in module.named_children() if type(each) not in _ELEMENTWISE]
    taken = set[str]()
    for (first, wide), (second, narrow) in pairwise(layers):
        if not (is_linear(wide) and is_linear(narrow) and isinstance(wide, nn.Linear)):
            continue
        if wide.out_features > wide.in_features and first not in taken:
            taken.add(second)
            yield first, Columns()
            yield second, Rows()
