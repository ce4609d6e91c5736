"""CIFAR-10 with a small residual net, arguments from the command line and a one-cycle schedule."""
import argparse
import os

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision import transforms as T
from tqdm import tqdm


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="./data")
    p.add_argument("--epochs", type=int, default=24)
    p.add_argument("--batch-size", type=int, default=512)
    p.add_argument("--lr", type=float, default=0.4)
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--device", default="cuda")
    p.add_argument("--resume", default="")
    p.add_argument("--detect-anomaly", action="store_true")
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Conv2d(cin, cout, 1, stride)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.shortcut(x))


def build_model():
    stem = nn.Sequential(
        nn.Conv2d(3, 64, kernel_size=3, padding=1),  # finds H417
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
    )
    blocks = [Block(64, 64), Block(64, 128, 2), Block(128, 256, 2), Block(256, 256)]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))
    return nn.Sequential(stem, *blocks, head)


def train_one_epoch(model, loader, optimizer, scheduler, criterion, device, epoch):
    model.train()
    bar = tqdm(loader, desc=f"train {epoch}")
    for images, targets in bar:
        images = images.to(device)  # finds H204
        targets = targets.to(device)  # finds H204
        optimizer.zero_grad(set_to_none=False)  # finds H303
        loss = criterion(model(images), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        bar.set_postfix(loss=loss.item(), lr=scheduler.get_last_lr()[0])  # finds H201


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    right = seen = 0
    for images, targets in loader:
        images, targets = images.to(device), targets.to(device)
        right += (model(images).argmax(dim=1) == targets).sum().item()
        seen += targets.numel()
    return right / seen


def main():
    args = parse_args()
    torch.backends.cudnn.benchmark = True
    torch.autograd.set_detect_anomaly(args.detect_anomaly)

    norm = T.Normalize((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
    augment = T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.ToTensor(), norm])
    plain = T.Compose([T.ToTensor(), norm])
    train_set = datasets.CIFAR10(args.data, train=True, download=True, transform=augment)
    test_set = datasets.CIFAR10(args.data, train=False, transform=plain)
    train_loader = DataLoader(  # finds H103
        train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True
    )
    test_loader = DataLoader(test_set, batch_size=1024, num_workers=2)  # finds H103

    model = build_model().to(args.device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = optim.SGD(  # finds H307
        model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    scheduler = OneCycleLR(optimizer, max_lr=args.lr, epochs=args.epochs, steps_per_epoch=len(train_loader))

    start = 0
    if args.resume and os.path.exists(args.resume):
        state = torch.load(args.resume, map_location="cpu")  # finds H416
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        start = state["epoch"] + 1

    for epoch in range(start, args.epochs):
        train_one_epoch(model, train_loader, optimizer, scheduler, criterion, args.device, epoch)
        accuracy = evaluate(model, test_loader, args.device)
        print(f"epoch {epoch}: {accuracy:.2%}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(), "epoch": epoch}, "last.pt")


if __name__ == "__main__":
    main()
