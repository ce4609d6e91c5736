"""Recomputed blocks keep every bit of losses, gradients and buffers, and free memory."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.parallel.repeated_blocks import repeated_blocks
from hasten.techniques.activation_checkpointing import TECHNIQUE, recompute_in_backward
from hasten.techniques.common.block_costs import measure_segments
from hasten.techniques.common.model_blocks import blocks_of, segments
from hasten.techniques.contract import No, Yes
from support import setup_of


class Block(nn.Module):
    """Batch norm, dropout, an optional argument by keyword and one that is no tensor."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.5)

    def forward(self, x: Tensor, scale: float = 1.0, *, shift: Tensor | None = None) -> Tensor:
        y = self.dropout(torch.tanh(self.norm(self.linear(x)))) * scale
        return x + y if shift is None else x + y + shift


class Tower(nn.Module):
    def __init__(self, blocks: int = 5, make: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(6, 6), nn.ModuleList(make() for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for place, block in enumerate(self.blocks):
            x = block(x, 0.5, shift=x.detach()) if place % 2 and isinstance(block, Block) else block(x)
        return x


def tensors_after_training(model: nn.Module, autocast: bool = False) -> dict[str, Tensor]:
    """Every loss, gradient and buffer after two windows of two microbatches."""
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept: dict[str, Tensor] = {}
    for window in range(2):
        for microbatch in range(2):
            batch = torch.randn(8, 6)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(batch).float().square().mean() / 2
            loss.backward()
            kept[f"loss {window} {microbatch}"] = loss.detach()
        kept |= {f"grad {window} {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
    kept["the next random numbers"] = torch.randn(4)
    return kept | {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def checkpointed(model: nn.Module, value: Value, **options: Value) -> nn.Module:
    model = copy.deepcopy(model)
    TECHNIQUE.apply(setup_of(model, None), choice(value, **options))
    return model


def choice(value: Value, **options: Value) -> Choice:
    return Choice(technique="activation_checkpointing", value=value, preserves=Preserves.BITS, options=options)


@pytest.mark.trap(35)
@pytest.mark.trap(30)
@pytest.mark.trap(13)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bf16 autocast"])
@pytest.mark.parametrize(
    ("value", "options"),
    [("blocks", {}), ("blocks", {"keep": "products"}), ("alternate", {}), (["blocks.1", "blocks.3", "first"], {})],
    ids=str,
)
def test_losses_gradients_and_buffers_keep_their_bits(value: Value, options: dict[str, Value], autocast: bool):
    plain = Tower()
    other = checkpointed(plain, value, **options)
    assert_same_bits(tensors_after_training(other, autocast=autocast), tensors_after_training(plain, autocast=autocast))


@pytest.mark.trap(30)
def test_a_frozen_batch_norm_inside_a_block_stays_frozen():
    plain = Tower()
    for block in plain.blocks:
        block.norm.eval()
    before = plain.blocks[0].norm.running_mean.clone()
    other = checkpointed(plain, "blocks")
    assert_same_bits(tensors_after_training(other), tensors_after_training(plain))
    assert torch.equal(other.blocks[0].norm.running_mean, before)
    assert not other.blocks[0].norm.training


class CumulativeNorm(nn.Sequential):
    """A batch norm that averages over all batches reads its own counter."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=None), nn.Tanh())


class SpectralNorm(nn.Sequential):
    """A power iteration moves its buffers in every training forward, and the weight depends on them."""

    def __init__(self) -> None:
        super().__init__(spectral_norm(nn.Linear(6, 6)), nn.Tanh())


@pytest.mark.trap(30)
@pytest.mark.parametrize("make", [CumulativeNorm, SpectralNorm])
def test_a_buffer_that_the_forward_reads_or_writes_keeps_its_bits(make: Callable[[], nn.Module]):
    plain = Tower(3, make)
    other = checkpointed(plain, "blocks")
    assert_same_bits(tensors_after_training(other), tensors_after_training(plain))


@pytest.mark.trap(35)
def test_two_backwards_through_one_graph_give_twice_the_gradient():
    model = checkpointed(Tower(2, SpectralNorm), "blocks")
    loss = model(torch.randn(4, 6)).square().sum()
    loss.backward(retain_graph=True)
    once = [parameter.grad.clone() for parameter in model.parameters()]
    loss.backward()
    assert all(torch.equal(p.grad, 2 * gradient) for p, gradient in zip(model.parameters(), once, strict=True))


@pytest.mark.trap(35)
def test_a_block_used_twice_and_blocks_within_blocks_keep_their_bits():
    plain = Tower(2)
    plain.blocks.append(plain.blocks[0])
    other = checkpointed(plain, ["blocks.0", "blocks.1", "blocks.0.norm"])
    assert_same_bits(tensors_after_training(other, autocast=True), tensors_after_training(plain, autocast=True))


@pytest.mark.trap(35)
def test_inputs_may_lack_a_gradient_and_outputs_may_be_other_objects():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, batch: dict[str, Tensor], *, use_reentrant: str) -> dict[str, Any]:
            return {"x": torch.sin(self.linear(batch["x"])), "said": use_reentrant}

    block, batch = Pair(), {"x": torch.randn(3, 6)}
    block(batch, use_reentrant="yes")["x"].sum().backward()
    expected = block.linear.weight.grad.clone()
    block.zero_grad()
    recompute_in_backward(block)
    result = block(batch, use_reentrant="yes")
    result["x"].sum().backward()
    assert result["said"] == "yes"
    assert torch.equal(block.linear.weight.grad, expected)


def test_memory_is_freed_and_only_in_training():
    def saved_bytes(model: nn.Module) -> int:
        kept: list[int] = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(torch.randn(64, 6))
        return sum(kept)

    plain = Tower()
    other = checkpointed(plain, "blocks")
    assert saved_bytes(other) < saved_bytes(plain) / 2
    assert saved_bytes(other) <= saved_bytes(checkpointed(plain, "blocks", keep="products")) < saved_bytes(plain)
    assert saved_bytes(other.eval()) == saved_bytes(plain.eval())


@pytest.mark.trap(34)
def test_names_identities_and_classes_stay():
    model = Tower()
    before, modules = list(model.state_dict()), list(model.modules())
    TECHNIQUE.apply(setup_of(model, None), choice("blocks"))
    assert list(model.state_dict()) == before
    assert all(now is then for now, then in zip(model.modules(), modules, strict=True))
    assert type(model.blocks[0]) is Block


def test_a_copy_of_the_model_computes_with_its_own_weights():
    model = checkpointed(Tower(2), "blocks")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        assert twin.train()(torch.randn(4, 6)).abs().sum() == 0
        twin(torch.randn(4, 6)).sum().backward()
        assert twin.blocks[0].linear.weight.grad is not None
    assert model.blocks[0].linear.weight.grad is None


@pytest.mark.trap(35)
@pytest.mark.parametrize("options", [{}, {"keep": "products"}], ids=str)
def test_a_compiled_model_recomputes_too_and_writes_its_statistics_once(options: dict[str, Value]):
    torch._dynamo.reset()
    plain = Tower(3)
    for block in plain.blocks:
        block.dropout.p = 0.0  # the compiler draws other numbers
    other = checkpointed(plain, "blocks", **options)
    other.compile(backend="aot_eager", fullgraph=True)
    got, expected = tensors_after_training(other), tensors_after_training(plain)
    torch._dynamo.reset()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor)


@pytest.mark.gpu
@pytest.mark.trap(35)
def test_dropout_on_the_device_is_replayed_for_inputs_that_torch_does_not_see():
    class Opaque:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    class Unpacking(Block):
        def forward(self, hidden: Opaque) -> Tensor:
            return super().forward(hidden.x)

    torch.manual_seed(3)
    plain, x = Unpacking().cuda(), torch.randn(32, 6, device="cuda")
    other = copy.deepcopy(plain)
    recompute_in_backward(other)
    for block in (plain, other):
        torch.manual_seed(4)
        block(Opaque(x)).square().sum().backward()
    assert_same_bits(*({n: p.grad for n, p in block.named_parameters()} for block in (plain, other)))


def test_repeated_blocks_are_the_outermost_that_are_not_lists_of_blocks():
    stage = [nn.Sequential(*(Block() for _ in range(2))) for _ in range(2)]
    model = nn.ModuleDict({"stages": nn.Sequential(*stage), "layers": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))})
    assert repeated_blocks(model) == ["stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1"]
    units = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2)), nn.Linear(2, 2))
    assert repeated_blocks(units) == ["0", "1"]
    heads = nn.ModuleList(nn.ModuleDict({"heads": nn.ModuleList(Block() for _ in range(2))}) for _ in range(2))
    assert repeated_blocks(heads) == ["0.heads.0", "0.heads.1", "1.heads.0", "1.heads.1"]
    model = nn.Sequential(Block(), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 2))
    assert blocks_of(model) == ["0", "1"], "where none is repeated, the children"


def test_a_model_of_single_layers_is_refused_with_the_reason():
    setup = setup_of(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)), None)
    assert TECHNIQUE.applies(setup) == No("the model has no block of several layers to recompute")
    tower = setup_of(Tower(), None)
    assert TECHNIQUE.applies(tower) == Yes()
    assert list(TECHNIQUE.candidates(tower)) == [
        choice("blocks", keep="products"),
        choice("blocks"),
        choice("measured"),
        choice("alternate"),
    ]


@pytest.mark.parametrize("value", ["every", [], True, ["blocks.9"], ["blocks"], [""]], ids=str)
def test_a_value_that_means_no_block_is_refused(value: Value):
    with pytest.raises(PlanError, match="activation_checkpointing"):
        segments(Tower(), value)


@pytest.mark.trap(31)
def test_measuring_leaves_buffers_flags_randomness_and_gradients_as_they_were():
    model = Tower()
    model.blocks[1].norm.eval()

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        random.random()
        return model(batch).square().mean() + model.train().first(batch).mean()

    setup = setup_of(model, torch.randn(8, 6), loss=loss)
    before, flags = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    state, of_python = torch.get_rng_state(), random.getstate()
    costs = measure_segments(setup)
    assert len(costs) == 5
    assert all(cost.saved_bytes > 0 for cost in costs)
    assert_same_bits(dict(model.state_dict()), dict(before))
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == of_python
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(("options", "share"), [({}, 0.5), ({"free_share": 0.9}, 0.9), ({"free_share": 1}, 1.0)])
def test_measured_blocks_free_the_requested_share_and_a_notice_lists_them(options: dict[str, Value], share: float):
    setup = setup_of(Tower(), torch.randn(8, 6), loss=lambda model, batch: model(batch).square().mean())
    saved = {cost.name: cost.saved_bytes for cost in measure_segments(setup, forwards=1)}
    TECHNIQUE.apply(setup, replace(choice("measured"), options=options))
    chosen = [name for name in saved if "forward" in vars(setup.model.get_submodule(name))]
    freed, kept = sum(saved[name] for name in chosen), sum(saved.values())
    assert share * kept <= freed
    assert freed - min(saved[name] for name in chosen) < share * kept, "one block less would do"
    (notice,) = setup.notices
    assert f"{len(chosen)} of 5 blocks: {', '.join(chosen)}. They save {freed:,} of {kept:,} bytes" in notice


@pytest.mark.parametrize("share", [0, -0.5, 1.01, True, "half", float("nan")], ids=str)
def test_a_share_that_cannot_be_freed_is_refused(share: Value):
    with pytest.raises(PlanError, match="free_share is "):
        TECHNIQUE.apply(setup_of(Tower(), None), replace(choice("measured"), options={"free_share": share}))


@pytest.mark.parametrize(
    "wrong",
    [choice("blocks", free_share=0.5), choice(["first"], free_share=0.5), choice("blocks", keep="sums")],
    ids=str,
)
def test_an_option_that_a_value_does_not_have_is_refused(wrong: Choice):
    with pytest.raises(PlanError, match="write no options"):
        TECHNIQUE.apply(setup_of(Tower(), None), wrong)
