"""Models that are a row of blocks, with all that people put around and into one, and some that only look like it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from support.parallel.tensor_models import LENGTH, WIDTH, WORDS, Block


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


class Annealed(Untied):
    """What is counted behind the blocks is read before them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, words: Tensor) -> Tensor:
        stream = self.words(words) / (1 + self.seen)
        for block in self.blocks:
            stream = block(stream)
        self.seen += self.training
        return self.head(stream)


_ROWS = (GPT, Mixed, Frozen, Writing, Dropping, Untied, Peeking, Masked)
_OTHERS = (Twice, Remembering, Tied, Halves, Resting, Sparse, Annealed)
MODELS: dict[str, type[nn.Module]] = {each.__name__: each for each in (*_ROWS, *_OTHERS)}
