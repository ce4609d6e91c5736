import json
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

# Config
CONFIG = dict(
    seed=2024,
    n_features=20,
    hidden=(64, 32),
    lr=5e-3,
    bs=128,
    epochs=8,
    out="metrics.json",
)


def make_data(cfg):
    gen = torch.Generator().manual_seed(cfg["seed"])
    X = torch.randn(5000, cfg["n_features"], generator=gen)
    w = torch.randn(cfg["n_features"], generator=gen)
    p = torch.sigmoid(2 * X @ w / cfg["n_features"] ** 0.5 + X[:, 0] * X[:, 1])
    y = torch.bernoulli(p, generator=gen)
    return (X[:4000], y[:4000]), (X[4000:4500], y[4000:4500]), (X[4500:], y[4500:])


def build(cfg):
    sizes = [cfg["n_features"], *cfg["hidden"]]
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers.extend([nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.1)])
    layers.append(nn.Linear(sizes[-1], 1))
    return nn.Sequential(*layers)


@torch.no_grad()
def valid_loss(model, loader, criterion):
    model.eval()
    losses = []
    for xb, yb in loader:
        losses.append(criterion(model(xb).squeeze(1), yb))
    model.train()
    return torch.stack(losses).mean().item()


def test_accuracy(model, loader):
    # TODO: should this be in no_grad too?
    model.eval()
    hits, seen = 0, 0
    for xb, yb in loader:
        logits = model(xb).squeeze(1)
        hits += ((logits > 0) == yb.bool()).sum().item()
        seen += len(yb)
    model.train()
    return hits / seen


def run(cfg):
    torch.manual_seed(cfg["seed"])
    train, valid, test = make_data(cfg)
    train_loader, valid_loader, test_loader = (
        DataLoader(TensorDataset(*part), batch_size=cfg["bs"], shuffle=i == 0)
        for i, part in enumerate((train, valid, test))
    )
    model = build(cfg)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.NAdam(model.parameters(), lr=cfg["lr"])
    history = []
    for epoch in range(cfg["epochs"]):
        epoch_loss = 0
        for xb, yb in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(xb).squeeze(1), yb)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.detach()
        history.append({
            "epoch": epoch,
            "train_loss": epoch_loss.item() / len(train_loader),
            "valid_loss": valid_loss(model, valid_loader, criterion),
            "test_accuracy": test_accuracy(model, test_loader),
        })
        print(history[-1])
    with open(cfg["out"], "w") as f:
        json.dump({"config": cfg, "history": history, "final": history[-1]}, f, indent=2)
    print("wrote", os.path.abspath(cfg["out"]))


run(CONFIG)
