from torch import nn

from .grammar import TAGS, WORDS


class Tagger(nn.Module):
    def __init__(self, dim: int = 32, hidden: int = 48):
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), dim, padding_idx=0)
        self.encoder = nn.LSTM(dim, hidden // 2, bidirectional=True, batch_first=True)
        self.output = nn.Linear(hidden, len(TAGS))

    def forward(self, words):
        return self.output(self.encoder(self.embed(words))[0])
