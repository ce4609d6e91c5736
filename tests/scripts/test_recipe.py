"""What the steps of a script are made of is read, so that a plan that changes it is found."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hasten.facts.choice import Choice
from hasten.facts.plan import Plan
from hasten.scripts.proving.dropout import dropout_removed, dropout_watched, remove_from_layers
from hasten.scripts.proving.loader_recipe import loader_recipe
from hasten.scripts.proving.script_prover import ScriptProver
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.proof.recipe_proof import UNKNOWN, different_in
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.trials.other_programs import OtherPrograms
from support.scripts.programs import CORPUS, PROGRAMS


class Noisy(Dataset[Tensor]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand(3)


class Drawn(Noisy):
    def __init__(self) -> None:
        self.samples = [*map(super().__getitem__, range(len(self)))]

    def __getitem__(self, index: int) -> Tensor:
        return self.samples[index]


ROWS = TensorDataset(torch.arange(100.0))
PASSES = {
    "a module": (lambda: nn.Dropout(0.5)(torch.ones(2, 8)), {0.5: 16}),
    "a function": (lambda: functional.dropout2d(torch.ones(2, 3, 4, 4), p=0.25), {0.25: 96}),
    "a function that trains": (lambda: functional.alpha_dropout(torch.ones(4), 0.1, True), {0.1: 4}),
    "recurrent layers": (lambda: nn.LSTM(3, 4, num_layers=2, dropout=0.2)(torch.ones(5, 2, 3))[0], {0.2: 30}),
    "attention": (
        lambda: functional.scaled_dot_product_attention(*[torch.ones(1, 2, 5, 4)] * 3, dropout_p=0.3),
        {0.3: 50},
    ),
    "evaluation": (lambda: nn.Dropout(0.5).eval()(torch.ones(2, 8)), {}),
}


@pytest.mark.parametrize("name", PASSES)
def test_what_is_dropped_out_is_counted(name):
    call, expected = PASSES[name]
    found = Counter[float]()
    with ExitStack() as resources:
        dropout_watched(resources, lambda p, numbers: found.update({p: numbers}))
        call()
    assert found == expected


@pytest.mark.parametrize("name", [each for each in PASSES if each != "recurrent layers"])
def test_dropout_of_functions_can_be_switched_off(name):
    call, _ = PASSES[name]
    with ExitStack() as resources:
        dropout_removed(resources)
        assert torch.equal(call(), call())
        assert call().count_nonzero() == call().numel()


def test_dropout_of_recurrent_layers_can_be_switched_off():
    module = nn.Sequential(nn.LSTM(3, 4, num_layers=2, dropout=0.2))
    remove_from_layers(module)
    assert torch.equal(module(torch.ones(5, 2, 3))[0], module(torch.ones(5, 2, 3))[0])


class Fails(Noisy):
    """As one that is read by other indices than these."""

    def __getitem__(self, index: int) -> Tensor:
        raise KeyError(index)


def test_a_data_set_that_cannot_be_read_otherwise_says_nothing_of_its_samples():
    found = loader_recipe(DataLoader(Fails(), 8))
    assert found["one sample drawn again and again"] == [UNKNOWN]
    assert different_in(found, loader_recipe(DataLoader(Noisy(), 8))) == {}


def test_the_order_of_samples_is_that_of_the_sampler_and_the_same_each_time():
    shuffled, own = (DataLoader(ROWS, 8, True, generator=each) for each in (None, torch.Generator()))
    for loader in (shuffled, own):
        assert loader_recipe(loader) == loader_recipe(loader)
    in_order = loader_recipe(DataLoader(ROWS, 8))["order of the samples"]
    assert in_order[0].startswith("0, 1, 2, 3, … ")
    assert loader_recipe(shuffled)["order of the samples"] != in_order


@pytest.mark.parametrize(
    ("data", "again"),
    [(Noisy(), "another one each time"), (Drawn(), "at times the same one"), (ROWS, "at times the same one")],
)
def test_one_sample_is_drawn_again_and_again(data, again):
    assert loader_recipe(DataLoader(data, 8))["one sample drawn again and again"] == [again]


def test_a_batch_that_is_gathered_by_one_index_has_the_order_of_its_loader():
    batches = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(ROWS), 8, drop_last=False)
    gathered = DataLoader(ROWS, batch_size=None, sampler=batches)
    assert loader_recipe(gathered) == loader_recipe(DataLoader(ROWS, 8, shuffle=True))


def test_the_first_step_that_differs_is_named():
    plain = {"lr": ["0.1", "0.1"], "dropout": ["4 at 0.5"] * 2}
    assert not different_in(plain, plain)
    found = different_in(plain, {"lr": ["0.1", "0.2"], "weight_decay": ["0.0", "0.0"]})
    assert found["lr"].endswith("lr, in step 2, is 0.2 with it, not 0.1")
    assert found["dropout"].endswith("dropout, in step 1, is nothing with it, not 4 at 0.5")
    assert {*found} == {"lr", "dropout", "weight_decay"}


OVERFLOWS = """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    for step in range(60):
        optimizer.zero_grad()
        loss = model(torch.full((2, 3), 1e38 if step % 3 == 2 else 1.0)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.proof
def test_a_step_that_overflows_adds_nothing_to_the_next_one(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.py").write_text(dedent(OVERFLOWS))
    monkeypatch.chdir(tmp_path / "own")
    program = Program(name="train.py")
    prover = ScriptProver(script_arms(program, observe(program), tmp_path, OtherPrograms(None)), tmp_path)
    assert set(prover.recipe_of(Plan())["calls"]) == {"backward, update 1"}


BITS_AND_ROUNDING = [("threads", 1), ("fused_optimizer", "foreach"), ("compile", "default")]
LOADERS = [("loader_workers", 2), ("persistent_workers", True)]
TECHNIQUES = {
    "plain/train_digits.py": [*BITS_AND_ROUNDING, *LOADERS, ("channels_last", True), ("precision", "bf16")],
    "plain/first_net.py": [("batches_by_index", True)],
    "plain/eval_two_ways.py": [("evaluation_without_gradients", True), ("precision", "bf16")],
    "plain/unet_blobs.py": [*LOADERS, ("precision", "bf16")],
    "plain/chargpt.py": [*BITS_AND_ROUNDING, ("precision", "bf16")],
    "steps/accumulate.py": [*BITS_AND_ROUNDING, *LOADERS, ("precision", "bf16")],
    "steps/gan_ring.py": [("fused_optimizer", "foreach")],
    "libraries/hf_trainer.py": [*LOADERS, ("precision", "bf16")],
    "libraries/lightning_digits.py": [*LOADERS, ("precision", "bf16")],
}


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", TECHNIQUES)
def test_techniques_keep_the_recipe(script, tmp_path, monkeypatch):
    for needed in PROGRAMS[script].needs.split():
        pytest.importorskip(needed)
    (tmp_path / "own").mkdir()
    shutil.copy(CORPUS / script, tmp_path / "own")
    monkeypatch.chdir(tmp_path / "own")
    program = Program(name=Path(script).name)
    prover = ScriptProver(script_arms(program, observe(program), tmp_path, OtherPrograms(None)), tmp_path)
    plain = prover.recipe_of(Plan())
    assert plain["calls"]
    for technique, value in TECHNIQUES[script]:
        choices = [Choice(technique=technique, value=value)]
        if technique == "persistent_workers":
            choices.append(Choice(technique="loader_workers", value=2))
        assert different_in(plain, prover.recipe_of(plan_of(choices))) == {}, technique
