"""Biases that a batch norm cancels are removed, and the model computes the same."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hasten.entry import prepare
from hasten.errors import Misconfigured
from hasten.facts.choice import Choice, Preserves
from hasten.facts.job import Job
from hasten.facts.plan import make_plan
from hasten.techniques.contract import No, Yes
from hasten.techniques.conv_bn_bias import (
    TECHNIQUE,
    Pair,
    find_useless_biases,
    remove_biases,
    with_biases,
)
from support import setup_of, small_job

CHOICE = Choice(technique="conv_bn_bias", value=True, preserves=Preserves.ROUNDING)


class Network(nn.Module):
    """Convolutions of width 4, one after the other. plan: for each, whether a batch norm follows, and whether the
    convolution's own output is also added to the end (a skip connection)."""

    def __init__(self, plan: list[tuple[bool, bool]]) -> None:
        super().__init__()
        self.plan = plan
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in plan)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) if normed else nn.Identity() for normed, _ in plan)

    def forward(self, x: Tensor) -> Tensor:
        end = torch.zeros_like(x)
        for convolution, norm, (_, skips) in zip(self.convolutions, self.norms, self.plan, strict=True):
            y = convolution(x)
            end = end + y if skips else end
            x = torch.tanh(norm(y)) + x
        return x + end


def pair(name: str, norm: str, channels: int = 4) -> Pair:
    return Pair(convolution=name, batch_norm=norm, channels=channels)


def trained(model: nn.Module, shape: tuple[int, ...] = (6, 4, 5, 5)) -> nn.Module:
    """With running statistics of its own, and biases that matter."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=3)
        for _ in range(3):
            model(torch.randn(shape))
    return model


def evaluate(model: nn.Module, batch: Tensor) -> Tensor:
    with torch.no_grad():
        output = model.eval()(batch)
    model.train()
    return output


def close(one: Tensor | None, other: Tensor | None) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-4)


plans = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4)


@pytest.mark.trap(33)
@settings(max_examples=25)
@given(plan=plans, seed=st.integers(0, 1000))
def test_exactly_the_useless_biases_are_removed_and_nothing_else_changes(plan: list[tuple[bool, bool]], seed: int):
    torch.manual_seed(seed)
    model = trained(Network(plan))
    original, batch = copy.deepcopy(model), torch.randn(6, 4, 5, 5)
    pairs = find_useless_biases(model)
    useless = [index for index, (normed, skips) in enumerate(plan) if normed and not skips]
    assert pairs == [pair(f"convolutions.{index}", f"norms.{index}") for index in useless]

    remove_biases(model, pairs)
    close(evaluate(model, batch), evaluate(original, batch))
    expected, got = original(batch), model(batch)
    close(got, expected)
    expected.square().mean().backward()
    got.square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in original.named_parameters()}
    gone = set(gradients) - {name for name, _ in model.named_parameters()}
    assert gone == {f"{each.convolution}.bias" for each in pairs}
    for name, parameter in model.named_parameters():
        close(parameter.grad, gradients[name])
    # The training step above changed the running statistics of both.
    expected = evaluate(original, batch)
    close(evaluate(model, batch), expected)
    jobs_own = Network(plan)
    jobs_own.load_state_dict(with_biases(model.state_dict(), pairs), strict=True)
    close(evaluate(jobs_own, batch), expected)


@pytest.mark.trap(33)
@pytest.mark.parametrize(
    ("convolution", "norm", "shape"),
    [
        (nn.Conv1d, nn.BatchNorm1d, (6, 4, 7)),
        (nn.Conv3d, nn.BatchNorm3d, (6, 4, 3, 3, 3)),
        (nn.ConvTranspose2d, nn.BatchNorm2d, (6, 4, 3, 3)),
        (nn.Conv2d, partial(nn.BatchNorm2d, track_running_stats=False), (6, 4, 5, 5)),
    ],
)
def test_every_kind_of_convolution_evaluates_the_same_without_its_bias(
    convolution: Callable[..., nn.Module], norm: Callable[..., nn.Module], shape: tuple[int, ...]
):
    model = trained(nn.Sequential(convolution(4, 6, 2, groups=2), norm(6)), shape)
    original, batch = copy.deepcopy(model), torch.randn(shape)
    pairs = find_useless_biases(model)
    assert pairs == [pair("0", "1", 6)]
    remove_biases(model, pairs)
    close(evaluate(model, batch), evaluate(original, batch))
    original.load_state_dict(with_biases(model.state_dict(), pairs), strict=True)
    close(evaluate(model, batch), evaluate(original, batch))


def frozen_by_mode(model: nn.Sequential) -> None:
    model[1].eval()


def frozen_by_gradient(model: nn.Sequential) -> None:
    model[1].requires_grad_(False)


def parametrized(model: nn.Sequential) -> None:
    nn.utils.parametrize.register_parametrization(model[0], "bias", nn.Tanh())


@pytest.mark.trap(33)
@pytest.mark.trap(30)
@pytest.mark.parametrize("change", [frozen_by_mode, frozen_by_gradient, parametrized])
def test_a_pair_is_skipped_where_its_bias_could_matter(change: Callable[[nn.Sequential], None]):
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    assert find_useless_biases(model) == [pair("0", "1")]
    change(model)
    assert find_useless_biases(model) == []


class ConvolutionTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(self.norm(self.convolution(x)))


class NormTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.norm(self.first(x))))


class OtherInEvaluation(ConvolutionTwice):
    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        return self.norm(y) if self.training else y


@pytest.mark.trap(33)
@pytest.mark.parametrize("network", [ConvolutionTwice, NormTwice, OtherInEvaluation])
def test_an_output_that_is_read_a_second_way_keeps_its_bias(network: Callable[[], nn.Module]):
    assert find_useless_biases(network()) == []


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) if x.sum() > 0 else x


def wrapped(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(forward)
    def called(*given: Any, **named: Any) -> Tensor:
        return forward(*given, **named)

    return called


class Wrapped(Branching):
    @wrapped
    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.layers(x) * scale


@pytest.mark.parametrize(("network", "reason"), [(Branching, ": symbolically traced variables"), (Wrapped, "")])
def test_a_model_that_cannot_be_traced_is_refused_in_words_of_its_own(network: Callable[[], nn.Module], reason: str):
    answer = TECHNIQUE.applies(setup_of(network(), torch.randn(2, 4, 3, 3)))
    assert isinstance(answer, No)
    what, _, torchs = answer.reason.partition(" is not possible")
    assert what == "torch.fx cannot trace this model, so what depends on how its layers are connected"
    assert torchs.startswith(reason)
    assert "co_varnames" not in torchs
    with pytest.raises(Misconfigured, match="cannot trace") as refused:
        find_useless_biases(network())
    assert refused.value.fix == "remove conv_bn_bias from the plan"


class Restless(nn.Module):
    """A forward that counts, draws and remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.calls, self.last = 0, None
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        self.last = x
        return self.layers(x) * random.random() + torch.rand(1)


def test_the_search_for_pairs_changes_neither_model_nor_randomness():
    model = Restless()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state, of_python = torch.get_rng_state(), random.getstate()
    assert len(find_useless_biases(model)) == 1
    assert (model.calls, model.last, model.training) == (0, None, True)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == of_python
    assert "forward" not in vars(model.layers[0])


def test_applying_it_maps_weights_back_and_a_notice_names_weight_decay():
    model = trained(Network([(True, False), (False, False)]))
    whole, batch = copy.deepcopy(model.state_dict()), torch.randn(2, 4, 5, 5)
    expected = evaluate(model, batch)
    setup = setup_of(model, batch)
    assert TECHNIQUE.applies(setup) == Yes()
    assert list(TECHNIQUE.candidates(setup)) == [CHOICE]
    TECHNIQUE.apply(setup, CHOICE)
    (to_job,), (notice,) = setup.to_job_weights, setup.notices
    assert "weight decay" in notice
    close(evaluate(model, batch), expected)
    assert to_job(model.state_dict()).keys() == whole.keys()
    assert TECHNIQUE.applies(setup) == No("no convolution with a bias feeds one trained batch norm and nothing else")


def every_bias_by_name(model: Network) -> list[dict[str, Any]]:
    biases = [convolution.bias for convolution in model.convolutions]
    others = [each for each in model.parameters() if all(each is not bias for bias in biases)]
    return [{"params": others}, {"params": biases, "weight_decay": 0.0}]


def pairs_of_name_and_parameter(model: Network) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters())


def image_job(pairs: list[tuple[bool, bool]], images: int, parameters: Callable[[Any], Any]) -> Job:
    return small_job(
        model=lambda: Network(pairs),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]).mean((2, 3)), batch[1]),
        optimizer=lambda params: torch.optim.AdamW(params, lr=0.1),
        parameters=parameters,
        train=(torch.randn(images, 4, 5, 5), torch.randint(0, 4, (images,))),
    )


@pytest.mark.trap(33)
@pytest.mark.parametrize(
    ("parameters", "value"),
    [(every_bias_by_name, "fused"), (pairs_of_name_and_parameter, None)],
)
def test_parameter_groups_lose_a_removed_bias(parameters: Callable[[Any], Any], value: str | None):
    job = image_job([(True, False), (True, False)], 8, parameters)
    choices = {"conv_bn_bias": True} | ({"fused_optimizer": value} if value else {})
    with prepare(job, make_plan(**choices)) as run:
        (optimizer,) = run.optimizers
        held = [each for group in optimizer.param_groups for each in group["params"]]
        assert {id(each) for each in held} == {id(each) for each in run.model.parameters()}
        before = [each.detach().clone() for each in held]
        for batch in run.batches():
            run.step(batch)
        assert all(not torch.equal(one, other) for one, other in zip(held, before, strict=True))
        assert all(convolution.bias is None for convolution in run.model.convolutions)
    assert len(optimizer.param_groups) == (1 if parameters is pairs_of_name_and_parameter else 2)


@pytest.mark.trap(33)
def test_a_state_saved_without_the_biases_resumes_bit_for_bit():
    job = image_job([(True, False), (False, False)], 24, every_bias_by_name)
    plan = make_plan(conv_bn_bias=True)
    with prepare(job, plan) as whole:
        for batch in whole.batches():
            whole.step(batch)
    with prepare(job, plan) as first:
        for batch in first.epoch_batches():
            first.step(batch)
        state = first.state_dict()
    with prepare(job, plan) as second:
        second.load_state_dict(state)
        for batch in second.batches():
            second.step(batch)
        assert whole.weights().keys() == second.weights().keys()
        assert all(torch.equal(weight, second.weights()[name]) for name, weight in whole.weights().items())
