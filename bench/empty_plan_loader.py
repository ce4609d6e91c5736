"""A training with a loader, a scheduler, and a loss that is read in every step:
python empty_plan_loader.py --width 64 --batch 32"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=100_000)
    options = parser.parse_args()

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16_384, options.width), torch.randint(10, (16_384,)))
    train = DataLoader(data, batch_size=options.batch, shuffle=True, drop_last=True)
    model = nn.Sequential(
        *(nn.Linear(options.width, options.width), nn.ReLU(), nn.Linear(options.width, options.width), nn.ReLU()),
        nn.Linear(options.width, 10),
    )
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)
    for epoch in range(options.epochs):
        model.train()
        running = 0.0
        for step, (samples, classes) in enumerate(train):
            optimizer.zero_grad()
            loss = loss_of(model(samples), classes)
            loss.backward()
            optimizer.step()
            scheduler.step()
            running += loss.item()
            if step % 100 == 99:
                print(f"epoch {epoch} step {step} loss {running / (step + 1):.4f}")


if __name__ == "__main__":
    main()
