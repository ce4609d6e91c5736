"""Runs whose ranks hold a model one behind the other; a module of its own, so that started processes can import it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.entry import prepare
from hasten.errors import HastenError
from hasten.facts.loss import Loss
from hasten.facts.plan import make_plan
from hasten.training.over_ranks import whole_state
from tensor_models import LENGTH, WIDTH, WORDS, Block


class GPT(nn.Module):
    """Positions and a norm lie around the blocks, and the head is the embedding."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        stream = self.words(words) + self.positions
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream))


class Mixed(nn.Module):
    """What lies between the blocks is trained as well, blocks are given what was made before them, and batch norm
    counts in all three places."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gate = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.ones(WIDTH))
        self.first, self.last = nn.BatchNorm1d(LENGTH), nn.BatchNorm1d(LENGTH)
        self.blocks = nn.ModuleList(Gated() for _ in range(4))
        self.between = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head, self.unused = nn.Linear(WIDTH, WORDS), nn.Parameter(torch.ones(3))

    def forward(self, words: Tensor) -> Tensor:
        begun = self.first(self.words(words))
        stream = begun
        for block, between in zip(self.blocks, self.between, strict=True):
            stream = between(block(stream, self.gate))
        return self.head(self.last(stream) + begun)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(LENGTH)
        self.unused = nn.Linear(1, 1)

    def forward(self, stream: Tensor, gate: Tensor) -> Tensor:
        return stream + self.norm(self.wide(stream)).tanh() * gate


class Frozen(GPT):
    """Nothing is trained before the last block."""

    def __init__(self) -> None:
        super().__init__()
        for each in (self.words, *list(self.blocks)[:3]):
            each.requires_grad_(False)
        self.positions.requires_grad_(False)


class Twice(GPT):
    def forward(self, words: Tensor) -> Tensor:
        stream = self.words(words)
        for block in [*self.blocks, *self.blocks]:
            stream = block(stream)
        return self.head(stream)


class Remembering(GPT):
    """The head reads what the first block was given, and not by the blocks in between."""

    def forward(self, words: Tensor) -> Tensor:
        stream, middle = self.words(words) + self.positions, None
        for number, block in enumerate(self.blocks):
            stream = block(stream)
            middle = stream if number == 0 else middle
        return self.head(stream + middle)


class Judging(Remembering):
    """What it does wrong shows in evaluations alone."""

    def forward(self, words: Tensor) -> Tensor:
        return GPT.forward(self, words) if self.training else super().forward(words)


class Tied(GPT):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[3].mix.weight = self.blocks[0].mix.weight  # pyright: ignore[reportAttributeAccessIssue]


class Halves(GPT):
    """Its blocks return a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Pair() for _ in range(4))

    def forward(self, words: Tensor) -> Tensor:
        stream = self.words(words)
        for block in self.blocks:
            stream, _ = block(stream)
        return self.head(stream)


class Pair(Block):
    def forward(self, stream: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(stream), stream


class Resting(Remembering):
    """What it does wrong shows in no loss at first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        nn.init.zeros_(self.head.weight)


class Sparse(GPT):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=True)


class Writing(GPT):
    """Its blocks write to what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Adding() for _ in range(4))


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, WIDTH)

    def forward(self, stream: Tensor) -> Tensor:
        stream += self.wide(stream.clone()).tanh()
        return stream


class Dropping(GPT):
    """Which leaves out more in its last block, and before its head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[3].perceptron.append(nn.Dropout(0.5))  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        self.norm = nn.Sequential(nn.LayerNorm(WIDTH), nn.Dropout(0.3))


class Untied(GPT):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)


class Peeking(Untied):
    """Its head reads the embedding, and no gradient tells."""

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words) * self.words.weight.detach().norm()


class Masked(Untied):
    """A mask is made of what an embedding gives: of the word that is padding it gives zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)

    def forward(self, words: Tensor) -> Tensor:
        found = self.words(words)
        kept, stream = found.abs().sum(-1, keepdim=True) != 0, found + self.positions
        for block in self.blocks:
            stream = block(stream) * kept
        return self.head(self.norm(stream))


class Stem(Untied):
    """Batch norm lies before the blocks, and nothing behind them reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(LENGTH)

    def forward(self, words: Tensor) -> Tensor:
        stream = self.first(self.words(words))
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream))


class TiedWithin(GPT):
    """Two layers of one block have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Again() for _ in range(4))


class Again(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, stream: Tensor) -> Tensor:
        return stream + self.second(self.first(stream).tanh())


_ALL = (GPT, Mixed, Frozen, Twice, Remembering, Judging, Tied, Halves, Resting, Sparse, Writing, Dropping)
_ALL = (*_ALL, Untied, Peeking, Masked, Stem, TiedWithin)
MODELS: dict[str, type[nn.Module]] = {each.__name__: each for each in _ALL}


def loss(model: nn.Module, batch: Any) -> Loss:
    words, following = batch
    scores = model(words).flatten(0, 1)
    counted = following.flatten() % 4 != 0
    each = functional.cross_entropy(scores, following.flatten(), reduction="none")
    return Loss((each * counted).sum(), counted.sum(), prediction=scores, target=following.flatten())


def penalized(model: nn.Module, batch: Any) -> Loss:
    found = loss(model, batch)
    return Loss(found.total + sum(each.square().sum() for each in model.parameters()), found.count)


def with_auxiliary(model: nn.Module, batch: Any) -> Loss:
    found = loss(model, batch)
    return Loss(found.total, found.count, auxiliary=found.total / 10)


def mean(model: nn.Module, batch: Any) -> Tensor:
    words, following = batch
    return functional.cross_entropy(model(words).flatten(0, 1), following.flatten())


LOSSES = {each.__name__: each for each in (loss, penalized, with_auxiliary, mean)}


def job_of(model: str = "GPT", kind: str = "loss", **changes: Any) -> hasten.Job:
    """A last window of 5 samples of 37, where others have 8."""
    from torchmetrics.classification import MulticlassAccuracy

    generator = torch.Generator().manual_seed(7)
    words = torch.randint(0, WORDS, (37, LENGTH + 1), generator=generator)
    data = (words[:, :-1], words[:, 1:])
    fields: dict[str, Any] = {
        "model": lambda: MODELS[model]().double(),
        "loss": LOSSES[kind],
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        "train": data,
        "valid": tuple(each[:11] for each in data),
        "batch_size": 8,
        "epochs": 2,
        "clip_norm": 0.5,
        "log_every": 1,
        "metrics": {"accuracy": MulticlassAccuracy(WORDS)} if kind == "loss" else {},
    }
    return hasten.Job(**(fields | changes))


def trained(choices: Mapping[str, Any], model: str = "GPT", kind: str = "loss", **changes: Any) -> dict[str, Any]:
    """A whole run with an evaluation after each epoch: what it leaves, and how much of the weights this rank held."""
    with prepare(job_of(model, kind, **changes), make_plan(**choices)) as run:
        results, norms = list[float](), list[float]()
        for _ in range(2):
            for batch in run.epoch_batches():
                run.step(batch)
                if run.window_closed:
                    norms.append(run.gradient_norm or 0.0)
            results += run.evaluate().results.values()
        return {
            "weights": run.weights(),
            "losses": [window.mean for window in run.losses.drain()],
            "norms": norms,
            "results": results,
            "held": sum(each.numel() for each in run.model.parameters()),
            "unreached": sorted(run.unreached),
        }


def trained_with_average(
    choices: Mapping[str, Any], model: str = "GPT", changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return trained(choices, model, average=hasten.ExponentialAverage(0.9), **(changes or {}))


def masks(choices: Mapping[str, Any]) -> list[list[list[int]]]:
    """Which words this rank has hidden, at random, in each microbatch of a run, and in each batch of its evaluation: by
    torch's generator, and by one of the loss's own."""
    own, seen = torch.Generator().manual_seed(3), {True: list[list[int]](), False: list[list[int]]()}

    def masked(model: nn.Module, batch: Any) -> Loss:
        words, _ = batch
        hidden = (torch.rand(words.shape) < 0.3) | (torch.rand(words.shape, generator=own) < 0.2)
        if torch.is_grad_enabled() or not model.training:
            seen[torch.is_grad_enabled()].append(hidden.flatten().tolist())
        each = functional.cross_entropy(model(words * ~hidden).flatten(0, 1), words.flatten(), reduction="none")
        return Loss((each * hidden.flatten()).sum(), hidden.sum())

    with prepare(job_of("Dropping", loss=masked, metrics={}), make_plan(**choices)) as run:
        for batch in run.epoch_batches():
            run.step(batch)
        run.evaluate()
    return [seen[True], seen[False]]


def trained_in_dozens(choices: Mapping[str, Any]) -> dict[str, Any]:
    return trained(choices, batch_size=12)


def trained_by_the_largest(choices: Mapping[str, Any]) -> dict[str, Any]:
    return trained(choices | {"clipping": (0.05, {"norm_type": math.inf})})


def trained_from_the_start(choices: Mapping[str, Any]) -> dict[str, Any]:
    """By an optimizer that has a state before its first step."""
    return trained(choices, optimizer=lambda parameters: torch.optim.Adagrad(parameters, initial_accumulator_value=0.1))


def cut_and_gone_on(before: Mapping[str, Any], after: Mapping[str, Any], **changes: Any) -> dict[str, Tensor]:
    """The weights of a run that goes on by another plan after its third step, in the middle of an epoch."""
    average = hasten.ExponentialAverage(0.9)
    with prepare(job_of(average=average, **changes), make_plan(**before)) as run:
        for batch in run.batches():
            run.step(batch)
            if run.steps == 3:
                break
        state = whole_state(run, run.state_dict(), on_all=True)
    with prepare(job_of(average=average, **changes), make_plan(**after)) as run:
        run.load_state_dict(state)
        for batch in run.batches():
            run.step(batch)
        return run.weights()


def skipped_alike() -> list[Any]:
    """An infinity in what the second rank alone holds: what each rank did."""
    with prepare(job_of(clip_norm=None), make_plan(pipeline=2)) as run:
        batches = run.batches()
        run.step(next(batches))
        while not run.window_closed:
            run.step(next(batches))
        before = [each.detach().clone() for each in run.model.parameters()]
        if run.ranks.rank == 1:
            held = run.model.blocks[3].mix.weight  # pyright: ignore[reportAttributeAccessIssue, reportIndexIssue]
            held.register_hook(lambda gradient: gradient * math.inf)
        try:
            for batch in batches:
                run.step(batch)
        except HastenError as error:
            same = all(map(torch.equal, before, run.model.parameters()))
            return [type(error).__name__, same]
    return []


def noticed(choices: Mapping[str, Any]) -> list[str]:
    with prepare(job_of(), make_plan(**choices)) as run:
        return run.notices


def refused(choices: Mapping[str, Any], model: str = "GPT", kind: str = "loss", **changes: Any) -> str:
    try:
        with prepare(job_of(model, kind, **changes), make_plan(**choices)):
            return ""
    except HastenError as error:
        return str(error)
