"""Which modules of a model read which outputs, for every input: from its graphs as torch.fx records them.

A graph is valid for all inputs of one mode and one way of calling, because tracing fails wherever a tensor's value or
an argument decides the flow. So a model is traced in training and in evaluation, with and without its optional
arguments. What is true in each of these graphs is true for the model.

Source: https://docs.pytorch.org/docs/stable/fx.html
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.fx.proxy import TraceError

from hasten.data.order.randomness import undisturbed
from hasten.errors import Misconfigured


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """The modules in one graph. Layers of torch.nn are single calls in it."""

    called: frozenset[nn.Module]
    sole_reader: Mapping[nn.Module, nn.Module]
    """A module that is called once -> the only reader of its output, which is called once and reads nothing else."""


def trace(model: nn.Module) -> list[Flow]:
    """The model's graphs, those in training first.

    A copy that shares the parameters is traced, so neither the model nor a random generator changes. `forward` runs
    once for each graph, without data. Raises Misconfigured where that is not possible, with the tracer's reason where
    the flow depends on data.
    """
    try:
        parameters = inspect.signature(model.forward).parameters.values()
        optional = {each.name: each.default for each in parameters if each.default is not each.empty}
        ways = [optional, {}] if optional else [{}]
        with undisturbed():
            return [_trace_once(model, training, fixed) for training in (True, False) for fixed in ways]
    # With proxies in place of tensors, a forward can raise any exception.
    except Exception as error:
        # What else Python and torch raise speaks of their own code, as of one that takes the place of forward.
        reason = f": {str(error).splitlines()[0]}" if isinstance(error, TraceError) else ""
        what = (
            f"torch.fx cannot trace this model, so what depends on how its layers are connected is not possible{reason}"
        )
        raise Misconfigured(what, where=type(model).__name__, fix="remove conv_bn_bias from the plan") from error


def _trace_once(model: nn.Module, training: bool, fixed: dict[str, Any]) -> Flow:
    # The copy shares the parameters: the tracer replaces them by proxies, so no forward can write to them.
    replica = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    originals = dict(zip(replica.modules(), model.modules(), strict=True))
    if not training:
        replica.eval()
    graph = fx.Tracer().trace(replica, concrete_args=fixed or None)
    calls = {
        node: originals[replica.get_submodule(str(node.target))] for node in graph.nodes if node.op == "call_module"
    }
    return Flow(called=frozenset(calls.values()), sole_reader=_sole_readers(calls))


def _sole_readers(calls: Mapping[fx.Node, nn.Module]) -> dict[nn.Module, nn.Module]:
    times = Counter(calls.values())
    found: dict[nn.Module, nn.Module] = {}
    for node, reader in calls.items():
        if len(node.all_input_nodes) != 1:
            continue
        source = node.all_input_nodes[0]
        if len(source.users) == 1 and source in calls and times[calls[source]] == times[reader] == 1:
            found[calls[source]] = reader
    return found
