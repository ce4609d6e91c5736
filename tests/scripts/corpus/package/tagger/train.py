import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from . import __version__
from .grammar import TAGS, WORDS, sentences
from .network import Tagger

word_ids = {w: i for i, w in enumerate(WORDS)}
tag_ids = {t: i for i, t in enumerate(TAGS)}


def encode(batch):
    words = [torch.tensor([word_ids[w] for w in s.words]) for s in batch]
    tags = [torch.tensor([tag_ids[t] for t in s.tags]) for s in batch]
    return pad_sequence(words, batch_first=True), pad_sequence(tags, batch_first=True)


def make_loader(count, seed, batch_size, shuffle=False):
    return DataLoader(list(sentences(count, seed)), batch_size=batch_size, shuffle=shuffle, collate_fn=encode)


def evaluate(model, loader):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for words, tags in loader:
            hit = (model(words).argmax(-1) == tags) & (tags != 0)
            right, total = right + hit.sum().item(), total + (tags != 0).sum().item()
    return right / total


def train(epochs=3, batch_size=32, lr=5e-3, seed=0):
    torch.manual_seed(seed)
    train_loader = make_loader(2000, seed=1, batch_size=batch_size, shuffle=True)
    dev_loader = make_loader(300, seed=2, batch_size=128)
    model = Tagger()
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(epochs):
        model.train()
        for words, tags in train_loader:
            loss = criterion(model(words).transpose(1, 2), tags)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"[tagger {__version__}] epoch {epoch} loss {loss.item():.6f} dev {evaluate(model, dev_loader):.4f}")
    return model


if __name__ == "__main__":
    cli = argparse.ArgumentParser(prog="python -m tagger.train")
    cli.add_argument("--epochs", type=int, default=3)
    cli.add_argument("--batch-size", type=int, default=32)
    cli.add_argument("--lr", type=float, default=5e-3)
    train(**vars(cli.parse_args()))
