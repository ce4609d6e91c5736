"""Contrastive pretraining with two views per image on several GPUs, then a linear probe."""
import argparse
import csv
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from torchvision import models, transforms


class TwoViews(Dataset):
    def __init__(self, listing):
        with open(listing) as f:
            self.rows = list(csv.reader(f))
        self.augment = transforms.Compose(
            [
                transforms.RandomResizedCrop(96, scale=(0.3, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
                transforms.ToTensor(),
            ]
        )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        image = Image.open(self.rows[i][0]).convert("RGB")
        return self.augment(image), self.augment(image)


class NTXent(nn.Module):
    def __init__(self, temperature=0.2):
        super().__init__()
        self.temperature = temperature

    def forward(self, za, zb):
        n = za.size(0)
        z = F.normalize(torch.cat([za, zb]), dim=1)
        rows = []
        for i in range(len(z)):  # finds H207
            rows.append(z @ z[i] / self.temperature)
        scores = torch.stack(rows)
        scores = scores.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=z.device), -1e4)
        partner = (torch.arange(2 * n).to(z.device) + n) % (2 * n)  # finds H203
        return F.cross_entropy(scores, partner)


class Encoder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.backbone = models.resnet18(num_classes=512)
        self.project = nn.Sequential(
            nn.Linear(512, 512),  # finds H417
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, dim),
        )

    def forward(self, *views):
        return [self.project(self.backbone(view)) for view in views]


def pretrain(args, encoder, device):
    data = TwoViews(args.listing)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(  # finds H103
        data, args.batch, sampler=sampler, num_workers=args.workers, pin_memory=True, drop_last=True
    )
    criterion = NTXent()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.6, momentum=0.9, weight_decay=1e-4)  # finds H307
    scaler = torch.amp.GradScaler("cuda")  # finds H407
    encoder.train()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (view_a, view_b) in enumerate(loader):
            view_a = view_a.to(device)  # finds H204
            view_b = view_b.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                za, zb = encoder(view_a, view_b)
                loss = criterion(za, zb) / args.accumulate
                scaler.scale(loss).backward()  # finds H406 H411
            if (step + 1) % args.accumulate == 0 or step + 1 == len(loader):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            if step % 20 == 0:
                print(f"[{dist.get_rank()}] {epoch} {step} {loss.item() * args.accumulate:.3f}")


def probe(features, labels, device):
    """A linear layer on the frozen features; every process trains it on its share."""
    data = TensorDataset(features, labels)
    share = DistributedSampler(data)  # the other sampler is told the epoch, this one is not: finds H105
    loader = DataLoader(data, batch_size=512, sampler=share)  # finds H102
    layer = DDP(nn.Linear(512, 10).to(device), device_ids=[device])
    adam = torch.optim.Adam(layer.parameters(), lr=1e-3, fused=True)
    for _ in range(100):
        for x, y in loader:
            loss = F.cross_entropy(layer(x.to(device)), y.to(device))
            loss.backward()
            adam.step()  # finds H401
    return layer


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("listing")
    ap.add_argument("--features", default="stl10_features.pt")
    ap.add_argument("--epochs", type=int, default=200)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--workers", type=int, default=8)
    ap.add_argument("--accumulate", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = False  # finds H301
    encoder = DDP(Encoder().to(device), device_ids=[device])
    pretrain(args, encoder, device)
    encoder.eval()
    saved = torch.load(args.features, map_location="cpu", weights_only=True)
    layer = probe(saved["features"], saved["labels"], device)
    if dist.get_rank() == 0:
        torch.save({"encoder": encoder.module.state_dict(), "probe": layer.module.state_dict()}, "two_views.pt")


if __name__ == "__main__":
    main()
