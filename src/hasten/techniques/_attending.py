"""How layers whose forward method calls torch's scaled_dot_product_attention compute by hasten's own.

The code of such a method runs under the globals that it has. But where it comes to the function by global names, such
as functional.scaled_dot_product_attention, it asks the same module for another name, which no source can spell. So all
else that it calls, reads or writes is what it was.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.kernels.attention import attention

FUNCTION, OURS = "scaled_dot_product_attention", "hasten.attention"
_TORCHS = functional.scaled_dot_product_attention
Way = tuple[str, ...]  # the names by which code comes to the function: a global one, and attributes


def calls_attention(layer: nn.Module) -> bool:
    """Whether its own forward method calls torch's function in a way that is followed here."""
    return _by_own_attention(inspect.getattr_static(type(layer), "forward")) is not None


def attending(layer: nn.Module, /, *given: Any, **named: Any) -> Any:
    """What the layer's forward method gives, by hasten's attention; in the hands of torch.compile by torch's, for its
    graphs would end at a function that is made here."""
    forward = type(layer).forward
    by_own = None if torch.compiler.is_compiling() else _by_own_attention(forward)
    return (by_own or forward)(layer, *given, **named)


def _by_own_attention(forward: Callable[..., Any]) -> Callable[..., Any] | None:
    """The same function, but for its calls of torch's; None where it has none, where torch's is no longer what they
    come to, and for what is no plain function."""
    if not isinstance(forward, FunctionType):
        return None
    found = _asking_for_ours(forward.__code__)
    if found is None or not all(_leads_to_torchs(forward.__globals__, way) for way in found[1]):
        return None
    code, ways = found
    if (FUNCTION,) in ways:
        forward.__globals__[OURS] = _attention
    made = FunctionType(code, forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__)
    made.__kwdefaults__ = forward.__kwdefaults__
    return made


def _leads_to_torchs(names: Mapping[str, Any], way: Way) -> bool:
    if way == (FUNCTION,):
        return names.get(FUNCTION) is _TORCHS
    place = names.get(way[0])
    for name in way[1:-1]:
        place = getattr(place, name, None)
    return place is functional and functional.scaled_dot_product_attention is _TORCHS


@cache
def _asking_for_ours(code: CodeType) -> tuple[CodeType, frozenset[Way]] | None:
    """The code with the other name in it and in functions inside it, and the ways that led to torch's. None where it
    has no such way, or uses the name for something else as well."""
    inner, ways = dict[CodeType, CodeType](), _ways(code)
    for each in code.co_consts:
        if isinstance(each, CodeType) and FUNCTION in _names(each):
            found = _asking_for_ours(each)
            if found is None or ways is None:
                return None
            inner[each], ways = found[0], ways | found[1]
    if not ways:
        return None
    names = tuple(OURS if name == FUNCTION else name for name in code.co_names)
    constants = tuple(inner.get(each, each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_names=names, co_consts=constants), frozenset(ways)


def _names(code: CodeType) -> set[str]:
    """Also of the functions that stand inside."""
    return {*code.co_names}.union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def _ways(code: CodeType) -> set[Way] | None:
    """By which this code itself comes to the function; None where the name is one of something else in it."""
    found, way = set[Way](), Way()
    for each in dis.get_instructions(code):
        if each.is_jump_target:  # the name may be looked up in something else: (mine or functional).name
            way = ()
        if each.opname == "EXTENDED_ARG":
            continue
        goes_on = each.opname in ("LOAD_ATTR", "LOAD_METHOD") and way
        way = (each.argval,) if each.opname == "LOAD_GLOBAL" else (*way, each.argval) if goes_on else ()
        if each.opcode in dis.hasname and each.argval == FUNCTION:
            if not way:
                return None
            found.add(way)
    return found


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    plain = all(type(each) in (Tensor, nn.Parameter) for each in (query, key, value)) and isinstance(is_causal, bool)
    if not plain or attn_mask is not None or dropout_p or enable_gqa:
        return _TORCHS(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return attention(query, key, value, causal=is_causal, scale=scale)


setattr(functional, OURS, _attention)
