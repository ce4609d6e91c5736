from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hasten.errors import Misconfigured, PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.techniques._optimizer_state import remap_optimizer_state
from hasten.techniques.contract import No, Yes
from hasten.techniques.conv_bn_bias import (
    TECHNIQUE,
    Pair,
    find_useless_biases,
    remove_biases,
    with_biases,
    without_biases,
)
from support import laptop, setup_of

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
def test_exactly_the_useless_biases_go_and_nothing_else_changes(plan: list[tuple[bool, bool]], seed: int):
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
    # The training step above moved the running statistics of both.
    close(evaluate(model, batch), evaluate(original, batch))


@pytest.mark.trap(33)
@settings(max_examples=10)
@given(plan=plans, seed=st.integers(0, 1000))
def test_weights_go_to_the_jobs_own_model_and_back(plan: list[tuple[bool, bool]], seed: int):
    torch.manual_seed(seed)
    model = trained(Network(plan))
    batch, whole = torch.randn(2, 4, 5, 5), copy.deepcopy(model.state_dict())
    expected = evaluate(model, batch)
    pairs = find_useless_biases(model)
    remove_biases(model, pairs)

    jobs_own = Network(plan)
    jobs_own.load_state_dict(with_biases(model.state_dict(), pairs), strict=True)
    close(evaluate(jobs_own, batch), expected)

    fresh = Network(plan)
    remove_biases(fresh, pairs)
    fresh.load_state_dict(without_biases(whole, pairs), strict=True)
    close(evaluate(fresh, batch), expected)


@pytest.mark.trap(33)
@pytest.mark.parametrize(
    ("convolution", "norm", "shape"),
    [
        (nn.Conv1d, nn.BatchNorm1d, (6, 4, 7)),
        (nn.Conv3d, nn.BatchNorm3d, (6, 4, 3, 3, 3)),
        (nn.ConvTranspose1d, nn.BatchNorm1d, (6, 4, 7)),
        (nn.ConvTranspose2d, nn.BatchNorm2d, (6, 4, 3, 3)),
        (nn.ConvTranspose3d, nn.BatchNorm3d, (6, 4, 3, 3, 3)),
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


@pytest.mark.trap(33)
def test_a_batch_norm_that_keeps_no_running_statistics_cancels_the_bias_in_evaluation_too():
    model = trained(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)))
    original, batch = copy.deepcopy(model), torch.randn(6, 4, 5, 5)
    pairs = find_useless_biases(model)
    remove_biases(model, pairs)
    assert pairs == [pair("0", "1")]
    close(evaluate(model, batch), evaluate(original, batch))
    original.load_state_dict(with_biases(model.state_dict(), pairs), strict=True)


def frozen_by_mode(model: nn.Sequential) -> None:
    model[1].eval()


def frozen_by_gradient(model: nn.Sequential) -> None:
    model[1].requires_grad_(False)


def watched(model: nn.Sequential) -> None:
    model[0].register_forward_hook(lambda module, inputs, output: None)


def tied(model: nn.Sequential) -> None:
    model[1].bias = model[0].bias


def parametrized(model: nn.Sequential) -> None:
    nn.utils.parametrize.register_parametrization(model[0], "bias", nn.Tanh())


@pytest.mark.trap(33)
@pytest.mark.trap(30)
@pytest.mark.parametrize("change", [frozen_by_mode, frozen_by_gradient, watched, tied, parametrized])
def test_a_pair_is_left_alone_where_its_bias_could_matter(change: Callable[[nn.Sequential], None]):
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


class BiasReadAlone(ConvolutionTwice):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.convolution(x)) + self.convolution.bias.sum()


class OtherInEvaluation(ConvolutionTwice):
    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        return self.norm(y) if self.training else y


class OtherWhenGiven(ConvolutionTwice):
    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        y = self.convolution(x)
        return self.norm(y) if skip is None else self.norm(y) + skip * y


@pytest.mark.trap(33)
@pytest.mark.parametrize("network", [ConvolutionTwice, NormTwice, BiasReadAlone, OtherInEvaluation, OtherWhenGiven])
def test_an_output_or_bias_that_is_read_a_second_way_keeps_its_bias(network: Callable[[], nn.Module]):
    assert find_useless_biases(network()) == []


class OnlyInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.side, self.main = (nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x) + self.side(x) if self.training else self.main(x)


def test_a_pair_that_evaluation_does_not_run_is_found():
    assert len(find_useless_biases(OnlyInTraining())) == 2


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) if x.sum() > 0 else x


def test_a_model_that_cannot_be_traced_is_refused_with_the_tracers_reason():
    answer = TECHNIQUE.applies(setup_of(Branching(), torch.randn(2, 4, 3, 3)), laptop())
    assert isinstance(answer, No)
    assert answer.reason.startswith("the model cannot be traced: ")
    assert "control flow" in answer.reason
    with pytest.raises(Misconfigured, match="cannot be traced"):
        find_useless_biases(Branching())


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


def test_looking_for_pairs_leaves_model_and_randomness_as_they_were():
    model = Restless()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state, of_python = torch.get_rng_state(), random.getstate()
    assert len(find_useless_biases(model)) == 1
    assert (model.calls, model.last, model.training) == (0, None, True)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == of_python
    assert "forward" not in vars(model.layers[0])


def test_applying_it_fills_the_maps_and_says_the_effect_of_weight_decay():
    model = trained(Network([(True, False), (False, False)]))
    whole, batch = copy.deepcopy(model.state_dict()), torch.randn(2, 4, 5, 5)
    expected = evaluate(model, batch)
    setup = setup_of(model, batch)
    assert TECHNIQUE.applies(setup, laptop()) == Yes()
    assert list(TECHNIQUE.candidates(setup, laptop())) == [CHOICE]
    TECHNIQUE.apply(setup, CHOICE)
    (to_job,), (from_job,), (notice,) = setup.to_job_weights, setup.from_job_weights, setup.notices
    assert "weight decay" in notice
    model.load_state_dict(from_job(whole), strict=True)
    close(evaluate(model, batch), expected)
    assert to_job(model.state_dict()).keys() == whole.keys()
    assert TECHNIQUE.applies(setup, laptop()) == No(
        "no convolution with a bias feeds one trained batch norm and nothing else"
    )


def test_the_maps_leave_what_they_are_given_unchanged():
    model = trained(Network([(True, False)]))
    pairs, whole = find_useless_biases(model), copy.deepcopy(model.state_dict())
    without_biases(whole, pairs)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in model.state_dict().items())


def test_weights_of_another_model_and_a_senseless_value_are_refused():
    model = Network([(True, False)])
    pairs = find_useless_biases(model)
    remove_biases(model, pairs)
    with pytest.raises(Misconfigured, match=r"no convolutions\.0\.bias"):
        without_biases(model.state_dict(), pairs)
    with pytest.raises(PlanError, match="conv_bn_bias"):
        TECHNIQUE.apply(
            setup_of(model, None), Choice(technique="conv_bn_bias", value="yes", preserves=Preserves.ROUNDING)
        )


def grouped(model: nn.Module) -> tuple[list[str], torch.optim.Optimizer]:
    """AdamW with the convolutions' parameters in its second group, and the names in the order of its positions."""
    named = sorted(model.named_parameters(), key=lambda item: "convolutions" in item[0])
    groups = [[item for item in named if ("convolutions" in item[0]) == second] for second in (False, True)]
    optimizer = torch.optim.AdamW([{"params": group, "lr": 0.1 * place} for place, group in enumerate(groups, 1)])
    return [name for name, _ in named], optimizer


@pytest.mark.trap(33)
def test_an_optimizers_state_follows_the_parameters_that_stay():
    model = trained(Network([(True, False), (False, False), (True, False)]))
    before, optimizer = grouped(model)
    model(torch.randn(6, 4, 5, 5)).square().mean().backward()
    optimizer.step()
    momentum = {name: optimizer.state[parameter]["exp_avg"].clone() for name, parameter in model.named_parameters()}
    state = optimizer.state_dict()
    remove_biases(model, find_useless_biases(model))
    after, fresh = grouped(model)

    fresh.load_state_dict(remap_optimizer_state(state, before, after))
    assert len(after) == len(before) - 2
    for name, parameter in model.named_parameters():
        assert torch.equal(fresh.state[parameter]["exp_avg"], momentum[name])
        assert fresh.state[parameter]["step"] == 1
    assert [group["lr"] for group in fresh.param_groups] == [0.1, 0.2]
    assert [name for group in fresh.state_dict()["param_groups"] for name in group["param_names"]] == after
    assert len(state["state"]) == len(before)


def test_an_optimizer_state_that_does_not_fit_is_refused():
    state = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1).state_dict()
    with pytest.raises(Misconfigured, match="2 parameters and 1 names"):
        remap_optimizer_state(state, ["weight"], ["weight"])
    with pytest.raises(Misconfigured, match="knows no extra"):
        remap_optimizer_state(state, ["weight", "bias"], ["weight", "extra"])
