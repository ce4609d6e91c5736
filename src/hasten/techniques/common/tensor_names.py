"""Layers that a plan names for tensor parallelism, and how each is divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from hasten.errors import PlanError
from hasten.parallel.tensor.layer_divisions import Columns, Division, Heads, Rows, Scores, Words
from hasten.parallel.tensor.layer_patterns import is_linear, is_number

VOCABULARY = "vocabulary"
_FIX = "write names as model.named_modules() gives them, with * for any part"


def named(model: nn.Module, options: Mapping[str, Any]) -> Iterator[tuple[str, Division]]:
    """Layers that a plan names, and how they are divided. Raises PlanError for a name that matches nothing."""
    for option, patterns in options.items():
        for pattern in map(str, patterns):
            found = [*_NAMED[option](model, pattern)]
            if not found:
                what = f"{option} names {pattern!r}, which matches nothing in the model"
                raise PlanError(what, where="tensor", fix=_FIX)
            yield from found


def matching(model: nn.Module, patterns: Iterable[str]) -> list[str]:
    """Names of modules, in the model's order. Raises PlanError for a pattern that matches none."""
    found = dict[str, None]()
    for pattern in patterns:
        names = [name for name, _ in model.named_modules() if name and fnmatchcase(name, str(pattern))]
        if not names:
            what = f"sequence names {str(pattern)!r}, which matches nothing in the model"
            raise PlanError(what, where="tensor", fix=_FIX)
        found |= dict.fromkeys(names)
    return [name for name in found if name.rpartition(".")[0] not in found]


def _linear(model: nn.Module, pattern: str) -> Iterator[str]:
    for name, module in model.named_modules():
        if is_linear(module) and fnmatchcase(name, pattern):
            yield name


def _columns(model: nn.Module, pattern: str) -> Iterator[tuple[str, Division]]:
    path, _, parts = pattern.partition(":")
    way = Columns(int(parts) if parts.isdecimal() and int(parts) else 1)
    yield from ((name, way) for name in _linear(model, path))


def _rows(model: nn.Module, pattern: str) -> Iterator[tuple[str, Division]]:
    yield from ((name, Rows()) for name in _linear(model, pattern))


def _heads(model: nn.Module, pattern: str) -> Iterator[tuple[str, Division]]:
    path, _, attribute = pattern.rpartition(".")
    for name, module in model.named_modules():
        if fnmatchcase(name, path) and is_number(getattr(module, attribute, None)):
            yield name, Heads(attribute)


def _vocabulary(model: nn.Module, pattern: str) -> Iterator[tuple[str, Division]]:
    yield from ((name, Scores()) for name in _linear(model, pattern))
    for name, module in model.named_modules():
        if fnmatchcase(name, pattern) and _is_plain_embedding(module):
            yield name, Words()


def _is_plain_embedding(module: nn.Module) -> bool:
    """Whether it is torch's own, which neither changes its vectors in a lookup, nor counts the words of a batch."""
    if type(module) is not nn.Embedding or "weight" not in dict(module.named_parameters(recurse=False)):
        return False
    return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse


_Named = Callable[[nn.Module, str], Iterator[tuple[str, Division]]]
LAYERS: dict[str, _Named] = {"columns": _columns, "rows": _rows, "heads": _heads}
_NAMED = {**LAYERS, VOCABULARY: _vocabulary}
