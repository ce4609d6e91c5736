"""Forecast the next 8 values of a noisy seasonal series: N-BEATS with Lightning Fabric."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.fabric import Fabric, seed_everything
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, series, back=32, ahead=8):
        self.series, self.back, self.ahead = series, back, ahead

    def __len__(self):
        return len(self.series) - self.back - self.ahead + 1

    def __getitem__(self, i):
        mid = i + self.back
        return self.series[i:mid], self.series[mid:mid + self.ahead]


class NBeatsBlock(nn.Module):
    def __init__(self, back, ahead, width):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(back, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.backcast = nn.Linear(width, back)
        self.forecast = nn.Linear(width, ahead)

    def forward(self, x):
        h = self.fc(x)
        return x - self.backcast(h), self.forecast(h)


class NBeats(nn.Module):
    def __init__(self, back=32, ahead=8, width=64, blocks=3):
        super().__init__()
        self.blocks = nn.ModuleList(NBeatsBlock(back, ahead, width) for _ in range(blocks))

    def forward(self, x):
        total = 0
        for block in self.blocks:
            x, part = block(x)
            total = total + part
        return total


def main(hparams):
    seed_everything(hparams.seed)
    fabric = Fabric(accelerator="auto", devices=1, precision=hparams.precision)
    fabric.launch()

    t = torch.arange(4000)
    series = torch.sin(t / 6) + 0.5 * torch.sin(t / 24 + 1) + 0.2 * torch.randn(4000)
    train_loader = DataLoader(Windows(series[:3400]), batch_size=hparams.batch_size, shuffle=True)
    val_loader = DataLoader(Windows(series[3400:]), batch_size=256)

    model = NBeats()
    optimizer = torch.optim.RAdam(model.parameters(), lr=hparams.lr)
    model, optimizer = fabric.setup(model, optimizer)
    train_loader, val_loader = fabric.setup_dataloaders(train_loader, val_loader)

    for epoch in range(hparams.epochs):
        model.train()
        for batch_idx, (x, y) in enumerate(train_loader):
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            val = torch.stack([F.mse_loss(model(x), y) for x, y in val_loader]).mean()
        fabric.print(f"epoch {epoch} loss {loss.item():.6f} val {val.item():.6f}")
    fabric.save("nbeats.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--precision", default="32-true")
    p.add_argument("--seed", type=int, default=2020)
    main(p.parse_args())
