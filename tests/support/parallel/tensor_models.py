"""Models that ranks hold together in tests, in small: known to a table of layers, like known ones, and unknown."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS, WIDTH, HEADS, LENGTH = 20, 16, 4, 6


class Block(nn.Module):
    """As the one of examples/text.py."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, stream: Tensor) -> Tensor:
        projected = self.query_key_value(self.attention_norm(stream))
        query, key, value = projected.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.mix(attended.transpose(1, 2).flatten(2))
        return stream + self.perceptron(stream)


class GPT(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.blocks(self.dropout(self.words(words))))


class Encoder(nn.Module):
    """torch's own layers, of which some words are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(words.shape[1], dtype=torch.float64)
        return self.head(self.layers(self.words(words), mask=causal, is_causal=True))


class PaddingAware(Encoder):
    """Whose first word is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)


class Padded(Encoder):
    """As torch makes its encoder by itself, which leaves padding out while it evaluates."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layers(self.words(words), src_key_padding_mask=words == 3))


class LengthFirst(Encoder):
    """As torch's own layers are by themselves."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layers(self.words(words).transpose(0, 1)).transpose(0, 1))


class Mixing(Block):
    """Which lets its words see each other outside of what is divided."""

    def forward(self, stream: Tensor) -> Tensor:
        return super().forward(stream + stream.mean(1, keepdim=True))


class Normed(Block):
    """Which norms queries and keys of each head, as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH // HEADS)

    def forward(self, stream: Tensor) -> Tensor:
        projected = self.query_key_value(self.attention_norm(stream))
        query, key, value = projected.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(self.norm(query), self.norm(key), value, is_causal=True)
        stream = stream + self.mix(attended.transpose(1, 2).flatten(2))
        return stream + self.perceptron(stream)


class Resting(Block):
    """Whose attention says nothing at first; and which takes what heads it gets."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.mix.weight)

    def forward(self, stream: Tensor) -> Tensor:
        projected = self.query_key_value(self.attention_norm(stream))
        heads = self.heads if projected.shape[-1] == 3 * WIDTH else self.heads // 2 * 2
        query, key, value = projected.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.mix(attended.transpose(1, 2).flatten(2))
        return stream + self.perceptron(stream)


class WithBatchNorm(Block):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, stream: Tensor) -> Tensor:
        return super().forward(self.norm(stream.transpose(1, 2)).transpose(1, 2))


class Adapted(Block):
    """Whose few adapters each take some items: a part of a sequence may use one, another part another."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters = nn.ParameterList(nn.Parameter(torch.full((WIDTH,), 0.1)) for _ in range(3))

    def forward(self, stream: Tensor) -> Tensor:
        stream = super().forward(stream)
        chosen = (stream.detach()[..., 0] * 1000).long().abs() % 97 % 3
        for number, adapter in enumerate(self.adapters):
            if (chosen == number).any():
                stream = stream + (chosen == number).unsqueeze(-1) * adapter
        return stream


class Masked(Encoder):
    """With a mask that is learned, and a weight on which something hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.zeros(LENGTH, LENGTH))
        self.layers.layers[0].linear1.weight.register_hook(lambda gradient: 0.1 * gradient)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layers(self.words(words), mask=self.mask))


def of_blocks(kind: type[Block]) -> nn.Module:
    model = GPT()
    model.blocks = nn.Sequential(kind(), kind())
    return model


class Unknown(nn.Module):
    """Of layers that no table knows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.narrow(torch.relu(self.wide(self.words(words)))))


class Tripled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 3 * super().forward(input)


MODELS: dict[str, Any] = {
    "gpt": GPT,
    "encoder": Encoder,
    "length first": LengthFirst,
    "dropping": partial(GPT, dropout=0.5),
    "padding": PaddingAware,
    "padded": Padded,
    "mixing": lambda: of_blocks(Mixing),
    "normed": lambda: of_blocks(Normed),
    "resting": lambda: of_blocks(Resting),
    "batch norm": lambda: of_blocks(WithBatchNorm),
    "adapters": lambda: of_blocks(Adapted),
    "masked": lambda: Masked(),
    "unknown": lambda: Unknown(),
}
