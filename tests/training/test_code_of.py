"""A digest of what a function's code says: the same for what is written the same, another for what is not."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.nn import functional

import hasten
from hasten.training.code_of import digest_of

SHARE = 0.1


def by_value(share: float) -> Any:
    return lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=share)


def by_default(share: float) -> Any:
    def loss(model: Any, batch: Any, share: float = share) -> Any:
        return model(batch) * share

    return loss


def by_keyword(share: float) -> Any:
    def loss(model: Any, batch: Any, *, share: float = share) -> Any:
        return model(batch) * share

    return loss


def wrapped(share: float) -> Any:
    inner = by_value(share)

    @wraps(inner)
    def outer(model: Any, batch: Any) -> Any:
        return inner(model, batch)

    return outer


class Loss:
    def __init__(self, share: float) -> None:
        self.share, self.random = share, random.Random(1)

    def __call__(self, model: Any, batch: Any) -> Any:
        return model(batch) * self.share * self.random.random()

    def method(self, model: Any, batch: Any) -> Any:
        return model(batch) * self.share


class LossModule(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss(label_smoothing=share)

    def forward(self, model: Any, batch: Any) -> Any:
        return self.inner(model(batch[0]), batch[1])


def of_nothing(share: float) -> Any:
    """Its own nested function has the number as a constant."""
    return eval(f"lambda model, batch: [model(each) * {share} for each in batch]")


MAKERS = {
    "closure": by_value,
    "default": by_default,
    "keyword": by_keyword,
    "wrapped": wrapped,
    "partial": lambda share: partial(by_default(0.5), share=share),
    "supervised": lambda share: hasten.supervised(partial(functional.cross_entropy, label_smoothing=share)),
    "supervised function": lambda share: hasten.supervised(lambda output, target: output.sum() * share),
    "object": Loss,
    "method": lambda share: Loss(share).method,
    "module": LossModule,
    "constant": of_nothing,
    "cached": lambda share: lru_cache(by_value(share)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_same_is_the_same_and_another_value_is_another(make):
    assert digest_of(make(0.1)) == digest_of(make(0.1))
    assert digest_of(make(0.1)) != digest_of(make(0.2))


def test_a_global_that_it_reads_is_a_part_of_it(monkeypatch):
    def loss(model: Any, batch: Any) -> Any:
        return model(batch) * SHARE

    before = digest_of(loss)
    monkeypatch.setitem(globals(), "SHARE", 0.2)
    assert digest_of(loss) != before


def test_what_it_collects_and_how_often_it_ran_is_no_part_of_it():
    calls: list[int] = []

    def loss(model: Any, batch: Any) -> Any:
        calls.append(len(calls))
        return sum(each for each in range(4))

    before = digest_of(loss)
    for _ in range(1000):  # by then Python has rewritten the bytecode for itself
        loss(None, None)
    assert digest_of(loss) == before


def test_functions_that_call_each_other_come_to_an_end():
    def even(number: int) -> bool:
        return number == 0 or odd(number - 1)

    def odd(number: int) -> bool:
        return number != 0 and even(number - 1)

    assert digest_of(even) == digest_of(even)
    assert digest_of(even) != digest_of(odd)


def test_what_is_no_function_of_python_has_a_digest_too():
    assert len({digest_of(each) for each in (print, functional.l1_loss, functional.mse_loss)}) == 3


FILE = """
import functools, random, torch, hasten
def seeded(model, batch, generator=random.Random(4)):
    return model(batch) if batch in {"a", "b", "c", "d"} else generator.random()
class Strange:
    def __init__(self): self.inner, self.log = functools.partial(seeded, batch=object), []
    def __call__(self, model, batch): return self.inner(model)
print([hasten.training.code_of.digest_of(each) for each in (seeded, Strange(), torch.compile(lambda model: 1))])
"""


@pytest.mark.proof
def test_every_process_gives_the_same(tmp_path: Path):
    (tmp_path / "written.py").write_text("import hasten.training.code_of" + FILE)
    command = [sys.executable, str(tmp_path / "written.py")]
    told = {subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": str(seed)}) for seed in (1, 2)}
    assert len(told) == 1
