"""Lane-mark segmentation on several cards with torchrun, multi-scale, bf16."""
import os
import random
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision.io import read_image


@dataclass
class Conf:
    epochs: int = 45
    batch: int = 6
    every: int = 2
    lr: float = 0.02
    classes: int = 7
    root: str = "/data/lanes"
    profile: bool = False


class Lanes(Dataset):
    def __init__(self, root, part):
        with open(f"{root}/{part}.txt") as f:
            self.pairs = [line.split() for line in f]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, k):
        a, b = self.pairs[k]
        return read_image(a).float() / 255, read_image(b)[0].long()


class Bottleneck(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.squeeze = nn.Conv2d(c, c // 4, 1)  # finds H417
        self.bn1 = nn.SyncBatchNorm(c // 4)
        self.grow = nn.Conv2d(c // 4, c, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(c)

    def forward(self, x):
        y = self.bn1(self.squeeze(x))
        y = self.grow(F.relu(y))
        return x + self.bn2(F.relu(y))


def build(classes):
    return nn.Sequential(nn.Conv2d(3, 64, 7, 4, 3), Bottleneck(64), Bottleneck(64), nn.Conv2d(64, classes, 1))


def mean_iou(net, loader, device, classes):
    net.eval()
    hits = torch.zeros(classes, device=device)
    alls = torch.zeros(classes, device=device)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        for img, lab in loader:
            img, lab = img.to(device), lab.to(device)
            guess = F.interpolate(net(img), size=lab.shape[-2:]).argmax(1)
            for c in range(classes):
                hits[c] += ((guess == c) & (lab == c)).sum()
                alls[c] += ((guess == c) | (lab == c)).sum()
    dist.all_reduce(hits)
    dist.all_reduce(alls)
    return (hits / alls.clamp(min=1)).mean().item()


def main(conf):
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{rank}")
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True  # finds H301

    train_set, val_set = Lanes(conf.root, "train"), Lanes(conf.root, "val")
    sampler = DistributedSampler(train_set, drop_last=True)  # finds H105
    train_dl = DataLoader(train_set, conf.batch, sampler=sampler, num_workers=8, pin_memory=True)  # finds H103
    val_dl = DataLoader(val_set, 4, sampler=DistributedSampler(val_set, shuffle=False), num_workers=4,
                        persistent_workers=True)

    net = DistributedDataParallel(build(conf.classes).to(device), device_ids=[rank])
    opt = torch.optim.SGD(net.parameters(), lr=conf.lr, momentum=0.9, weight_decay=1e-4)  # finds H307
    poly = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=conf.epochs, power=0.9)
    scaler = torch.amp.GradScaler("cuda")  # finds H407

    for epoch in range(conf.epochs):
        net.train()
        for it, (img, lab) in enumerate(train_dl):
            img = img.to(device)  # finds H204
            lab = lab.to(device)  # finds H204
            side = random.choice([384, 448, 512, 640])
            img = F.interpolate(img, size=(side, side), mode="bilinear")
            lab = F.interpolate(lab[:, None].float(), size=(side // 4, side // 4))[:, 0].long()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(img), lab, ignore_index=255) / conf.every
                scaler.scale(loss).backward()  # finds H406 H411
            if (it + 1) % conf.every == 0 or it + 1 == len(train_dl):
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(net.parameters(), 5.0)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad(set_to_none=True)
            torch.cuda.synchronize()  # finds H306
            if rank == 0 and it % 50 == 0:
                print(epoch, it, loss.item() * conf.every)
        poly.step()
        iou = mean_iou(net, val_dl, device, conf.classes)
        if rank == 0:
            print(f"== {epoch}: mIoU {iou:.4f}")
            torch.save({"net": net.module.state_dict(), "epoch": epoch}, "lanes.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Conf())
