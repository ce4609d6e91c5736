"""A batch that is only looked at arrives in the form in which it was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from hasten.data.loading import batch_feed as feed
from support.data.first_batches import Self, copies, looked_at

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class Pair(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


@dataclass(frozen=True, slots=True)
class Framed:
    mask: torch.Tensor


class Boxes(torch.Tensor):
    """Whatever is made of it is an ordinary tensor, as with torchvision's own."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            made = function(*args, **(kwargs or {}))
        keeps = function in (torch.Tensor.detach, torch.Tensor.clone) or not isinstance(made, cls)
        return made if keeps else made.as_subclass(torch.Tensor)


def every_form(samples):
    half = torch.tensor([1.5, -2], dtype=torch.bfloat16)
    return {
        "pair": Pair(half, torch.tensor(3)),
        "framed": Framed(torch.tensor([[True, False]])),
        "empty": torch.empty(0, 3),
        "complex": torch.tensor([1 + 2j]),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "spread": torch.arange(3.0).expand(2, 3),
        "conjugate": torch.tensor([1 + 2j, 3]).conj(),  # torch only marks its values as such
        "negated": torch.tensor([1 + 2j]).conj().imag,
        "single": torch.arange(6.0).reshape(2, 3)[:1, 1],
        "self": Self(ids=torch.arange(3)),
        "boxes": torch.arange(4.0).as_subclass(Boxes),
        "own": torch.nn.Parameter(torch.tensor([0.5])),  # of a class of its own
        "words": ["a", b"b", None],
    }


@copies
def test_every_form_of_a_batch_arrives_as_it_was(monkeypatch):
    monkeypatch.setattr(feed, "read_here", None)  # all of them do arrive
    found, wanted = looked_at([0] * 8, collate=every_form), every_form([])
    assert found.keys() == wanted.keys()
    assert type(found["pair"]) is Pair
    for one, other in [
        (found["pair"].one, wanted["pair"].one),
        (found["pair"].other, wanted["pair"].other),
        (found["framed"].mask, wanted["framed"].mask),
        *(
            (found[name], wanted[name])
            for name in ("empty", "complex", "turned", "spread", "conjugate", "negated", "single")
        ),
        (found["self"]["ids"], wanted["self"]["ids"]),
        (found["own"], wanted["own"]),
    ]:
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert found["turned"].stride() == (1, 3)
    assert type(found["self"]) is Self
    assert type(found["own"]) is torch.nn.Parameter
    assert type(found["boxes"]) is Boxes
    assert found["words"] == wanted["words"]
