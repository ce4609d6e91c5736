"""A trainer class for rows of a table: regression of house prices from twelve columns."""
import logging

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("prices")


class Rows(Dataset):
    """All rows fit into memory, so nothing is done for each sample."""

    def __init__(self, features, prices):
        self.features = torch.from_numpy(features)
        self.prices = torch.from_numpy(prices)

    def __len__(self):
        return len(self.prices)

    def __getitem__(self, index):
        return self.features[index], self.prices[index]


class PriceNet(nn.Module):
    def __init__(self, columns, width=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(columns, width),  # finds H417
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.BatchNorm1d(width),
            nn.Linear(width, 1),
        )

    def forward(self, rows):
        return self.net(rows).squeeze(-1)


class Trainer:
    def __init__(self, model, train_loader, val_loader, epochs=40, device="cuda"):
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.epochs = epochs
        self.criterion = nn.SmoothL1Loss()
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.02)  # finds H307
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=epochs)

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for rows, prices in self.train_loader:
            rows = rows.to(self.device)
            prices = prices.to(self.device)
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(rows), prices)
            loss.backward()
            nn.utils.clip_grad_value_(self.model.parameters(), 5.0)
            self.optimizer.step()
            total += loss  # finds H205
        return total / len(self.train_loader)

    def validate(self):
        errors = torch.zeros(1, device=self.device)
        for rows, prices in self.val_loader:
            rows = rows.to(self.device)
            guess = self.model(rows)  # finds H413 H414
            errors += (guess.detach() - prices.to(self.device)).abs().mean()
        return errors.item() / len(self.val_loader)

    def fit(self):
        best = float("inf")
        for epoch in range(self.epochs):
            self.scheduler.step()  # before any optimizer step of this epoch: finds H402
            train_loss = self.train_epoch()
            val_error = self.validate()
            log.info("epoch %d: loss %.4f, validation %.4f", epoch, float(train_loss), val_error)
            if val_error < best:
                best = val_error
                torch.save(self.model.state_dict(), "prices_best.pt")
        return best


def load_table(path):
    table = np.load(path)
    features = table["features"].astype(np.float32)
    prices = np.log1p(table["prices"].astype(np.float32))
    return features, prices


def main():
    logging.basicConfig(level=logging.INFO)
    features, prices = load_table("houses.npz")
    order = np.random.default_rng(0).permutation(len(prices))
    cut = int(0.85 * len(order))
    train, val = order[:cut], order[cut:]

    train_loader = DataLoader(Rows(features[train], prices[train]), batch_size=256, drop_last=True)  # finds H102 H104
    val_loader = DataLoader(Rows(features[val], prices[val]), batch_size=1024)

    trainer = Trainer(PriceNet(features.shape[1]), train_loader, val_loader)
    print("best validation error", trainer.fit())


if __name__ == "__main__":
    main()
