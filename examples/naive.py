"""Classifies photographs, as many scripts do: the example for `hasten doctor examples/naive.py`.

    python examples/naive.py --epochs 8
    python examples/naive.py --data ~/my-photos      # holds train/<class>/*.jpg and valid/<class>/*.jpg

The network and the pictures are those of photos.py. Each fault that slows this script is common, and that job or its
plan removes it: look for the faults with hasten before you read on.
"""

import argparse
import math
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from sample_photos import sample_photos

SIZE = 64
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class PhotoDataset(Dataset):
    def __init__(self, root, train):
        self.classes = sorted(os.listdir(root))
        self.train = train
        self.samples = []
        for label, name in enumerate(self.classes):
            for file in sorted(os.listdir(os.path.join(root, name))):
                self.samples.append((os.path.join(root, name, file), label))

    def __len__(self):
        return len(self.samples)

    def crop(self, image):
        width, height = image.size
        if not self.train:
            side = min(width, height)
            left, top = (width - side) // 2, (height - side) // 2
            return image.crop((left, top, left + side, top + side))
        area = random.uniform(0.4, 1.0) * width * height
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w = min(width, round(math.sqrt(area * ratio)))
        h = min(height, round(math.sqrt(area / ratio)))
        left, top = random.randint(0, width - w), random.randint(0, height - h)
        image = image.crop((left, top, left + w, top + h))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return image

    def __getitem__(self, index):
        path, label = self.samples[index]
        image = self.crop(Image.open(path).convert("RGB")).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        image = (np.array(image) / 255.0 - MEAN) / STD
        return torch.tensor(image.transpose(2, 0, 1), dtype=torch.float32), torch.tensor(label)


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
    def __init__(self, width, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 4, stride=4, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.block1 = Block(width)
        self.block2 = Block(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.block3 = Block(2 * width)
        self.fc = nn.Linear(2 * width, num_classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.block2(self.block1(x))
        x = F.relu(self.bn2(self.conv2(x)))
        x = self.block3(x)
        return self.fc(x.mean(dim=(2, 3)))


def train_epoch(model, loader, criterion, optimizer, epoch):
    model.train()
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        accuracy = (outputs.argmax(1) == labels).float().mean()
        print(
            f"epoch {epoch + 1} step {step + 1}/{len(loader)}: loss {loss.item():.6f}, accuracy {accuracy.item():.4f}"
        )


def evaluate(model, loader):
    model.eval()
    correct = 0
    for images, labels in loader:
        outputs = model(images.to(device))
        correct += (outputs.argmax(1) == labels.to(device)).sum().item()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=None)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    root = args.data or sample_photos()
    train_dataset = PhotoDataset(os.path.join(root, "train"), train=True)
    valid_dataset = PhotoDataset(os.path.join(root, "valid"), train=False)
    train_loader = DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True)
    valid_loader = DataLoader(valid_dataset, batch_size=args.batch_size)

    model = Net(args.width, len(train_dataset.classes))
    if torch.cuda.device_count() > 1:
        model = nn.DataParallel(model)
    model = model.to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    start = time.time()
    for epoch in range(args.epochs):
        train_epoch(model, train_loader, criterion, optimizer, epoch)
        accuracy = evaluate(model, valid_loader)
        print(f"epoch {epoch + 1}: valid accuracy {accuracy:.4f}, {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
