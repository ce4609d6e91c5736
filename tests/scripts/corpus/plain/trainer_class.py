from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field
from typing import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger(__name__)


@dataclass
class TrainConfig:
    lr: float = 3e-3
    weight_decay: float = 0.01
    batch_size: int = 64
    max_epochs: int = 6
    seed: int = 1234
    optimizer: str = "AdamW"
    optimizer_kwargs: dict = field(default_factory=dict)


def set_seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Regressor(nn.Module):
    def __init__(self, in_dim: int, width: int = 96, depth: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(depth):
            layers += [nn.Linear(in_dim if i == 0 else width, width), nn.LayerNorm(width), nn.GELU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)).squeeze(-1)


class Trainer:
    def __init__(self, model: nn.Module, loss_fn: Callable[[Tensor, Tensor], Tensor],
                 train_loader: DataLoader, val_loader: DataLoader, cfg: TrainConfig) -> None:
        self.cfg = cfg
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.loss_fn = loss_fn
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.optimizer = self._build_optimizer()
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=cfg.max_epochs)
        self.history: list[dict[str, float]] = []

    def _build_optimizer(self) -> torch.optim.Optimizer:
        cls = getattr(torch.optim, self.cfg.optimizer)
        return cls(self.model.parameters(), lr=self.cfg.lr, weight_decay=self.cfg.weight_decay,
                   **self.cfg.optimizer_kwargs)

    def _step(self, batch: list[Tensor]) -> Tensor:
        x, y = (t.to(self.device, non_blocking=True) for t in batch)
        return self.loss_fn(self.model(x), y)

    def train_epoch(self) -> float:
        self.model.train()
        total = 0.0
        for batch in self.train_loader:
            loss = self._step(batch)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.train_loader)

    @torch.inference_mode()
    def validate(self) -> float:
        self.model.eval()
        return sum(self._step(batch).item() for batch in self.val_loader) / len(self.val_loader)

    def fit(self) -> None:
        for epoch in range(self.cfg.max_epochs):
            row = {"train": self.train_epoch(), "val": self.validate()}
            self.scheduler.step()
            self.history.append(row)
            log.info("epoch %d  train %.5f  val %.5f", epoch, row["train"], row["val"])


def friedman(n: int = 3000) -> TensorDataset:
    x = torch.rand(n, 10)
    y = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return TensorDataset(x, (y - y.mean()) / y.std())


if __name__ == "__main__":
    config = TrainConfig()
    set_seed(config.seed)
    train_set, val_set = random_split(friedman(), [0.8, 0.2])
    trainer = Trainer(
        model=Regressor(10),
        loss_fn=nn.SmoothL1Loss(),
        train_loader=DataLoader(train_set, batch_size=config.batch_size, shuffle=True, drop_last=True),
        val_loader=DataLoader(val_set, batch_size=config.batch_size * 4),
        cfg=config,
    )
    trainer.fit()
