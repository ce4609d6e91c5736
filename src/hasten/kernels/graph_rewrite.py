"""Rewrite a traced graph to use fused operators, for single functions and for functions that follow each other.

    model.compile(backend=FusedOperators())      # traced at its first call

The front end of torch.compile traces a model into graphs of torch's functions, with a guard for each Python value that
the trace relied on; another value traces again. Here such a graph is called function by function,
except for these replacements:

* gelu, softmax and layer_norm, each by its operator;
* scaled_dot_product_attention in bfloat16 on a processor, without a mask and dropout, by attention;
* cross_entropy of rows of scores and their classes, in models that compute their loss;
* a sum of two tensors and its LayerNorm, by add_layer_norm;
* a linear layer and GELU, and a dropout after it where that is requested, by the product and bias_gelu_dropout. It
  draws other random numbers than torch's dropout does for the same seed.

Two functions are replaced together only where one directly follows the other in the graph, and no third function reads
what the operator does not return. On an accelerator only gelu and softmax are replaced, as no other operator has a form
for it.

Source: torch.fx, Reed et al. 2022, arXiv:2112.08429; its tracer, Ansel et al. 2024, "PyTorch 2".
"""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional

from hasten.kernels.activation.bias_gelu_dropout import bias_gelu_dropout
from hasten.kernels.activation.gelu import gelu
from hasten.kernels.attention.scaled_dot_product_attention import CPP, attention
from hasten.kernels.normalization.add_layer_norm import add_layer_norm, layer_norm
from hasten.kernels.softmax.cross_entropy import cross_entropy
from hasten.kernels.softmax.softmax import softmax

# "bias_gelu_dropout" is not among them, as it draws random numbers of its own.
NAMES = ("gelu", "softmax", "layer_norm", "cross_entropy", "attention", "add_layer_norm", "bias_gelu")
Given = Mapping[str, Any]

_GELU = {"input": None, "approximate": "none"}
_SOFTMAX = {"input": None, "dim": None, "dtype": None}
_ATTENTION = {
    "query": None,
    "key": None,
    "value": None,
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}
_LINEAR = {"input": None, "weight": None, "bias": None}
_ADD = {"input": None, "other": None, "alpha": 1}


def _parameters(function: Callable[..., Any]) -> Given:
    """The parameters of a function in Python, in order with their defaults."""
    found = inspect.signature(function).parameters.values()
    return {each.name: None if each.default is each.empty else each.default for each in found}


# function -> its name here, and its parameters in order with their defaults
_FUNCTIONS: Mapping[Any, tuple[str, Given]] = {
    functional.gelu: ("gelu", _GELU),
    functional.softmax: ("softmax", _parameters(functional.softmax)),
    torch.softmax: ("softmax", _SOFTMAX),
    "softmax": ("softmax", _SOFTMAX),
    functional.layer_norm: ("layer_norm", _parameters(functional.layer_norm)),
    torch.layer_norm: ("layer_norm", {**_parameters(functional.layer_norm), "cudnn_enable": True}),
    functional.cross_entropy: ("cross_entropy", _parameters(functional.cross_entropy)),
    functional.scaled_dot_product_attention: ("attention", _ATTENTION),
    functional.linear: ("linear", _LINEAR),
    functional.dropout: ("dropout", _parameters(functional.dropout)),
    operator.add: ("add", _ADD),
    torch.add: ("add", _ADD),
    "add": ("add", _ADD),
}


class FusedOperators:
    """A backend for torch.compile that calls the traced graphs, with fused operators of these names in them.

    found: how often each operator has been put into a graph, over all graphs so far.
    """

    def __init__(self, names: Iterable[str] = NAMES) -> None:
        self.names = frozenset(names)
        self.found: Counter[str] = Counter()

    def __call__(self, traced: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        for part in traced.modules():
            if isinstance(part, GraphModule):  # the graph, and the graphs of checkpointed blocks in it
                self.found += rewrite(part.graph, self.names)
                part.recompile()
        return traced


def rewrite(graph: Graph, names: Iterable[str] = NAMES) -> Counter[str]:
    """Put operators of these names into the graph, in place. Returns the number of each."""
    wanted, found = [name for name in _REWRITES if name in {*names}], Counter[str]()
    for name in wanted:
        for node in list(graph.nodes):
            found[name] += _REWRITES[name](graph, node)
    graph.lint()
    return +found


def _gelu(graph: Graph, node: Node) -> bool:
    given = _given(node, "gelu")
    return given is not None and _replace(graph, node, gelu, given["input"], given["approximate"])


def _softmax(graph: Graph, node: Node) -> bool:
    given = _given(node, "softmax")
    if given is None or given["dtype"] is not None or not isinstance(given["dim"], int):
        return False
    return _replace(graph, node, softmax, given["input"], given["dim"])


def _layer_norm(graph: Graph, node: Node) -> bool:
    given = _given(node, "layer_norm")
    if given is None or not _over_last(given) or not _on_cpu(given["input"]):
        return False
    return _replace(graph, node, layer_norm, given["input"], given["weight"], given["bias"], given["eps"])


def _cross_entropy(graph: Graph, node: Node) -> bool:
    given = _given(node, "cross_entropy")
    if given is None or any(given[name] for name in ("size_average", "reduce", "label_smoothing")):
        return False
    scores, target = given["input"], given["target"]
    if given["weight"] is not None or not _on_cpu(scores) or not isinstance(target, Node):
        return False
    classes = _example(target)
    if _example(scores).dim() != 2 or classes.dtype != torch.int64:
        return False
    return _replace(graph, node, cross_entropy, scores, target, given["ignore_index"], given["reduction"])


def _attention(graph: Graph, node: Node) -> bool:
    """Only in bfloat16, as torch computes other dtypes anyway; under autocast one of the three is enough."""
    given = _given(node, "attention")
    if given is None or given["attn_mask"] is not None or given["enable_gqa"] or given["dropout_p"] != 0:
        return False
    heads = [given[name] for name in ("query", "key", "value")]
    if not all(map(_on_cpu, heads)) or CPP.why_plain() is not None:
        return False
    if all(_example(each).dtype != torch.bfloat16 for each in heads):
        return False
    return _replace(graph, node, attention, *heads, causal=given["is_causal"], scale=given["scale"])


def _add_layer_norm(graph: Graph, node: Node) -> bool:
    given = _given(node, "layer_norm")
    if given is None or not _over_last(given) or node.prev is not given["input"]:
        return False
    total = node.prev
    added = _given(total, "add")
    if added is None or added["alpha"] != 1 or not _same_shape(added["input"], added["other"]):
        return False
    with graph.inserting_before(total):
        arguments = added["input"], added["other"], given["weight"], given["bias"], given["eps"]
        both = graph.call_function(add_layer_norm, arguments)
        parts = [graph.call_function(operator.getitem, (both, index)) for index in range(2)]
    for old, new in zip((total, node), parts, strict=True):
        new.meta = dict(old.meta)
        old.replace_all_uses_with(new)
    graph.erase_node(node)
    graph.erase_node(total)
    return True


def _bias_gelu_dropout(graph: Graph, node: Node) -> bool:
    dropout = _given(node, "dropout")
    gelu = None if dropout is None else dropout["input"]
    if dropout is None or node.prev is not gelu or len(node.prev.users) > 1:
        return False
    return _after_linear(graph, node.prev, node, dropout["p"], training=dropout["training"])


def _bias_gelu(graph: Graph, node: Node) -> bool:
    return _after_linear(graph, node, node, 0.0, training=False)


def _after_linear(graph: Graph, node: Node, last: Node, p: Any, *, training: Any) -> bool:
    """node: GELU. last: the same node, or the dropout after it."""
    given = _given(node, "gelu")
    product = node.prev
    linear = _given(product, "linear")
    if given is None or given["input"] is not product or linear is None or len(product.users) > 1:
        return False
    if linear["bias"] is None or not _on_cpu(linear["input"]):
        return False
    with graph.inserting_before(product):
        without = graph.call_function(functional.linear, (linear["input"], linear["weight"]))
        without.meta = dict(product.meta)
    with graph.inserting_before(last):
        named = {"training": training, "approximate": given["approximate"]}
        new = graph.call_function(bias_gelu_dropout, (without, linear["bias"], p), named)
        new.meta = dict(last.meta)
    last.replace_all_uses_with(new)
    for old in dict.fromkeys((last, node, product)):
        graph.erase_node(old)
    return True


# Chains come first; single functions are replaced in what is left.
_REWRITES: Mapping[str, Callable[[Graph, Node], bool]] = {
    "bias_gelu_dropout": _bias_gelu_dropout,
    "bias_gelu": _bias_gelu,
    "add_layer_norm": _add_layer_norm,
    "gelu": _gelu,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "cross_entropy": _cross_entropy,
    "attention": _attention,
}


def _given(node: Any, name: str) -> dict[str, Any] | None:
    """The arguments of a call of this function by name, with defaults; None for any other node."""
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method") or "out" in node.kwargs:
        return None
    known, parameters = _FUNCTIONS.get(node.target, ("", {}))
    if known != name or isinstance(node.target, str) != (node.op == "call_method"):
        return None
    return {**parameters, **dict(zip(parameters, node.args, strict=False)), **node.kwargs}


def _replace(graph: Graph, node: Node, function: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    with graph.inserting_before(node):
        new = graph.call_function(function, arguments, named)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    return True


def _over_last(given: Given) -> bool:
    """Whether a LayerNorm is over the last dimension only."""
    return isinstance(given["normalized_shape"], Sequence) and len(given["normalized_shape"]) == 1


def _same_shape(one: Any, other: Any) -> bool:
    """Whether both are floating-point tensors of one shape on a processor."""
    return _on_cpu(one) and _on_cpu(other) and _example(one).shape == _example(other).shape


def _on_cpu(node: Any) -> TypeGuard[Node]:
    """Whether a node computes a floating-point tensor on a processor."""
    if not isinstance(node, Node) or not isinstance(example := _example(node), Tensor):
        return False
    return example.is_floating_point() and example.is_cpu


def _example(node: Node) -> Any:
    return node.meta.get("example_value")
