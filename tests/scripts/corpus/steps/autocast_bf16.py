"""Transformer encoder that tells balanced brackets from unbalanced ones; bf16 autocast already in place."""
import random
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader


@dataclass
class Hparams:
    d_model: int = 48
    nhead: int = 4
    layers: int = 2
    length: int = 24
    batch: int = 32
    lr: float = 1e-3
    amp: bool = True
    epochs: int = 2


hp = Hparams()
random.seed(8)
torch.manual_seed(8)
device_type = "cuda" if torch.cuda.is_available() else "cpu"


def brackets(n):
    samples = []
    while len(samples) < n:
        s, depth = [], 0
        for k in range(hp.length):
            go_up = depth == 0 or (depth < hp.length - k and random.random() < 0.5)
            s.append(1 if go_up else 2)
            depth += 1 if go_up else -1
        ok = len(samples) % 2
        if not ok:
            s = [random.choice((1, 1, 2)) for _ in s]
        samples.append((torch.tensor(s), ok))
    return samples


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(3, hp.d_model)
        self.pos = nn.Parameter(torch.randn(hp.length, hp.d_model) * 0.02)
        layer = nn.TransformerEncoderLayer(hp.d_model, hp.nhead, 4 * hp.d_model, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, hp.layers)
        self.cls = nn.Linear(hp.d_model, 2)

    def forward(self, ids):
        return self.cls(self.enc(self.tok(ids) + self.pos).mean(1))


model = Encoder().to(device_type)
optimizer = torch.optim.AdamW(model.parameters(), lr=hp.lr)
loader = DataLoader(brackets(1280), hp.batch, shuffle=True)
ctx = torch.autocast(device_type=device_type, dtype=torch.bfloat16) if hp.amp else nullcontext()

for epoch in range(hp.epochs):
    running = None
    for ids, label in loader:
        ids, label = ids.to(device_type), label.to(device_type)
        with ctx:
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits, label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
    print(f"epoch {epoch}: logits {logits.dtype}, loss {loss.item():.6f}, smoothed {running:.6f}")
