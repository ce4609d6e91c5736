"""What a tensor was computed from, and what stands in the place of a parameter that nothing is computed from."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hasten.parallel.reached import reached
from hasten.parallel.stand_ins import StandIns


def model_of_three():
    return nn.ModuleDict({name: nn.Linear(3, 3) for name in ("first", "second", "third")})


def test_what_a_backward_pass_would_reach_is_found_and_nothing_beyond_a_border():
    model = model_of_three()
    named = dict(model.named_parameters())
    middle = model["first"](torch.rand(2, 3)).tanh()
    total = model["second"](middle).sum() + named["third.bias"].detach().sum()
    assert reached([total], named) == {"first.weight", "first.bias", "second.weight", "second.bias"}
    assert reached([total], named, behind=[middle]) == {"second.weight", "second.bias"}
    assert reached([named["third.bias"], 3, None], named) == {"third.bias"}
    assert reached([total.detach()], named) == set()


def test_a_stand_in_looks_like_the_parameter_takes_a_row_and_is_no_number():
    model = model_of_three()
    model["third"].weight = model["first"].weight  # one parameter in two places
    own, rows = model["first"].weight, torch.rand(2, 3)
    stand_ins = StandIns(model, {"first.weight"})
    with stand_ins.in_place():
        for name in ("first", "third"):
            seen = model[name].weight
            assert (seen.shape, seen.dtype, seen.requires_grad) == (own.shape, own.dtype, False)
            assert seen.untyped_storage().nbytes() == 3 * 4
            assert model[name](rows).isnan().all()
        assert model["second"](rows).isfinite().all()
    assert model["first"].weight is own
    assert model["third"].weight is own


def test_after_an_error_the_parameters_are_in_their_places():
    model = model_of_three()
    own = model["first"].weight
    with pytest.raises(KeyError), StandIns(model, {"first.weight"}).in_place():
        raise KeyError
    assert model["first"].weight is own
