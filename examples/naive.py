"""Handwritten digits, trained by a script as many are written: what `hasten doctor examples/naive.py` is shown on.

    python examples/naive.py --epochs 8

The network, the data and the optimizer are those of digits.py. Everything that slows this script, and is mended by that
job or by its plan, is common: look for it with hasten before you look for it here.
"""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(x + out)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3, padding=1)
        self.bn = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.fc = nn.Linear(width, 10)

    def forward(self, x):
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.fc(x.mean(dim=(2, 3)))


def get_loaders(batch_size):
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 1, 8, 8)
    x_train, x_valid, y_train, y_valid = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=0
    )
    train = TensorDataset(torch.from_numpy(x_train), torch.from_numpy(y_train))
    valid = TensorDataset(torch.from_numpy(x_valid), torch.from_numpy(y_valid))
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(valid, batch_size=batch_size)


def evaluate(model, loader):
    model.eval()
    correct = 0
    for x, y in loader:
        out = model(x.to(device))
        correct += (out.argmax(1) == y.to(device)).sum().item()
    model.train()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(True)
    train_loader, valid_loader = get_loaders(args.batch_size)
    model = Net(args.width).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=args.epochs * len(train_loader))

    start = time.time()
    for epoch in range(args.epochs):
        total_loss = 0
        seen = 0
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad(set_to_none=False)
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            total_loss += loss * len(x)
            seen += len(x)
        accuracy = evaluate(model, valid_loader)
        print(f"epoch {epoch + 1}: loss {float(total_loss / seen):.6f}, accuracy {accuracy:.4f}")
    print(f"{time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
