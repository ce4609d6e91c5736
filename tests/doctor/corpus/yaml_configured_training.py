"""Trains whatever a YAML file describes; most of what is set cannot be seen from here."""

import argparse
import importlib
import random
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader

DEFAULTS = {
    "loader": {"batch_size": 64},
    "optimizer": {"name": "AdamW", "args": {"lr": 1e-3}},
    "schedule": {"name": "ReduceLROnPlateau", "args": {"patience": 3}},
    "accumulate": 1,
    "debug": False,
}


def read(path):
    with open(path) as stream:
        given = yaml.safe_load(stream)
    return {**DEFAULTS, **given}


def build(spec, *args, **more):
    """The object that {"name": "package.Class", "args": {...}} asks for."""
    module, _, name = spec["name"].rpartition(".")
    return getattr(importlib.import_module(module), name)(*args, **spec.get("args", {}), **more)


def prepare(cfg):
    seed = cfg.get("seed", 0)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True  # finds H305
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False  # finds H308
    torch.backends.cuda.matmul.allow_tf32 = cfg.get("tf32", True)
    torch.autograd.set_detect_anomaly(cfg["debug"])
    if cfg["debug"]:
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(True)


class Head(nn.Module):
    def __init__(self, n_in, n_out, norm=True, **options):
        super().__init__()
        self.fc1 = nn.Linear(n_in, n_in, **options)
        self.bn1 = nn.BatchNorm1d(n_in)
        self.fc2 = nn.Linear(n_in, n_out)  # finds H417
        self.bn2 = nn.BatchNorm1d(n_out)
        self.fc3 = nn.Linear(n_out, n_out)
        self.norm = norm

    def forward(self, x):
        x = torch.relu(self.bn1(self.fc1(x)))
        x = self.bn2(self.fc2(x))
        return self.fc3(torch.relu(x))


class Experiment:
    def __init__(self, cfg):
        self.cfg = cfg
        self.device = torch.device(cfg["device"])
        body = build(cfg["model"])
        if cfg.get("weights"):
            body.load_state_dict(torch.load(cfg["weights"], map_location="cpu"))  # finds H416
        self.model = nn.Sequential(body, Head(**cfg["head"])).to(self.device)
        self.criterion = build(cfg["loss"])
        self.train_loader = DataLoader(build(cfg["data"], split="train"), **cfg["loader"])
        self.valid_loader = DataLoader(build(cfg["data"], split="valid"), **dict(cfg["loader"], shuffle=False))
        kind = getattr(torch.optim, cfg["optimizer"]["name"])
        self.optimizer = kind(self.model.parameters(), **cfg["optimizer"]["args"])
        schedules = torch.optim.lr_scheduler
        self.schedule = schedules.ReduceLROnPlateau(self.optimizer, **cfg["schedule"]["args"])
        self.history = []

    def resume(self, path):
        options = {"map_location": self.device, "weights_only": True}
        state = torch.load(path, **options)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def train_epoch(self):
        self.model.train()
        every = self.cfg["accumulate"]
        total = 0
        for i, (x, y) in enumerate(self.train_loader):
            x, y = x.to(self.device), y.to(self.device)
            loss = self.criterion(self.model(x), y)
            (loss / every).backward()
            total += loss  # finds H205
            if (i + 1) % every == 0 or i + 1 == len(self.train_loader):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=self.cfg.get("set_to_none", True))
            if self.cfg.get("sync_each_step"):
                torch.cuda.synchronize()
        return total / len(self.train_loader)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        losses = [self.criterion(self.model(x.to(self.device)), y.to(self.device)) for x, y in self.valid_loader]
        return torch.stack(losses).mean().item()

    def run(self):
        for epoch in range(self.cfg["epochs"]):
            mean = self.train_epoch()
            score = self.validate()
            self.schedule.step()  # finds H403
            self.history.append((float(mean), score))
            print(f"{epoch:3d}  {mean.item():.4f}  {score:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--resume", type=Path)
    args = parser.parse_args()
    cfg = read(args.config)
    prepare(cfg)
    experiment = Experiment(cfg)
    if args.resume:
        experiment.resume(args.resume)
    experiment.run()


if __name__ == "__main__":
    main()
