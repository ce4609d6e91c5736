"""A training as a plain script: the loop that PyTorch's tutorials show, and nothing else.

python -m bench.whole_script rows /tmp/weights.pt
"""

from __future__ import annotations

import sys
import time

import torch
from bench.whole_work import BATCH, WORKS
from torch import nn
from torch.utils.data import DataLoader


def main(name: str, weights: str) -> None:
    torch.manual_seed(0)
    work = WORKS[name]()
    model, loss_of = work.model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=work.learning_rate)
    train, valid = DataLoader(work.train, BATCH, shuffle=True), DataLoader(work.valid, BATCH)
    began = time.perf_counter()
    for epoch in range(work.epochs):
        model.train()
        for step, (samples, classes) in enumerate(train):
            loss = loss_of(model(samples), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        model.eval()
        total = 0.0
        with torch.no_grad():
            for samples, classes in valid:
                total += loss_of(model(samples), classes).item() * len(classes)
        print(f"epoch {epoch} valid loss {total / len(work.valid):.4f}")  # type: ignore[arg-type]
    print(f"trained {time.perf_counter() - began}")
    torch.save(model.state_dict(), weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
