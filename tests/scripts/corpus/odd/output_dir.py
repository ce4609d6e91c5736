"""Every run goes into a folder of its own, as Hydra does it.

    python output_dir.py lr=0.02 model.width=64
"""
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEFAULTS = """
lr: 0.01
epochs: 6
batch_size: 50
seed: 3
model:
  width: 48
  act: ELU
"""


def parse(argv):
    cfg = yaml.safe_load(DEFAULTS)
    for item in argv:
        key, value = item.split("=", 1)
        node, *path = [cfg, *key.split(".")]
        for part in path[:-1]:
            node = node[part]
        if path[-1] not in node:
            sys.exit(f"unknown key {key}")
        node[path[-1]] = yaml.safe_load(value)
    return cfg


def namespace(tree):
    return SimpleNamespace(**{k: namespace(v) if isinstance(v, dict) else v for k, v in tree.items()})


def main():
    cfg = parse(sys.argv[1:])
    job = ",".join(sorted(sys.argv[1:])) or "default"
    output = Path("outputs") / job
    output.mkdir(parents=True, exist_ok=True)
    os.chdir(output)
    Path("config.yaml").write_text(yaml.safe_dump(cfg))
    cfg = namespace(cfg)

    torch.manual_seed(cfg.seed)
    x = torch.rand(3000, 4) * 2 - 1
    y = (x.prod(1) + x.abs().sum(1)).unsqueeze(1)
    model = nn.Sequential(
        nn.Linear(4, cfg.model.width),
        getattr(nn, cfg.model.act)(),
        nn.Linear(cfg.model.width, cfg.model.width),
        getattr(nn, cfg.model.act)(),
        nn.Linear(cfg.model.width, 1),
    )
    optimizer = torch.optim.Adamax(model.parameters(), lr=cfg.lr)
    loader = DataLoader(TensorDataset(x, y), cfg.batch_size, shuffle=True)
    with open("train.log", "w") as log:
        for epoch in range(cfg.epochs):
            for bx, by in loader:
                optimizer.zero_grad()
                loss = nn.functional.l1_loss(model(bx), by)
                loss.backward()
                optimizer.step()
            line = f"epoch={epoch} loss={loss.item():.6f}"
            print(line)
            log.write(line + "\n")
    torch.save(model.state_dict(), "model.pt")
    print("outputs in", os.getcwd())


if __name__ == "__main__":
    main()
