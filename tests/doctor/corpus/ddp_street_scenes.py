"""Semantic segmentation of street scenes on several cards, started with torchrun."""
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from streets.data import StreetScenes
from streets.model import build_segmenter


@dataclass
class Config:
    root: str = "/data/streets"
    classes: int = 19
    epochs: int = 80
    batch_size: int = 4
    workers: int = 8
    accumulate: int = 4
    lr: float = 1e-3
    seed: int = 11
    log_every: int = 50


def seed_everything(seed):
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True  # finds H305
    torch.backends.cudnn.benchmark = False


def make_loaders(cfg):
    train_set = StreetScenes(cfg.root, "train")
    val_set = StreetScenes(cfg.root, "val")
    train_sampler = DistributedSampler(train_set, seed=cfg.seed)  # finds H105
    val_sampler = DistributedSampler(val_set, shuffle=False)
    train_loader = DataLoader(  # finds H103
        train_set,
        batch_size=cfg.batch_size,
        sampler=train_sampler,
        num_workers=cfg.workers,
        pin_memory=True,
        drop_last=True,
    )
    val_loader = DataLoader(
        val_set, batch_size=1, sampler=val_sampler, num_workers=2, pin_memory=True, persistent_workers=True
    )
    return train_loader, val_loader


def train_one_epoch(model, loader, optimizer, scheduler, cfg, device, epoch):
    model.train()
    optimizer.zero_grad(set_to_none=True)
    mean_loss = torch.zeros((), device=device)
    for i, batch in enumerate(loader):
        image = batch["image"].to(device, non_blocking=True)
        label = batch["label"].to(device)  # finds H204
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(image)
            loss = F.cross_entropy(logits, label, ignore_index=255)
        (loss / cfg.accumulate).backward()  # finds H411
        mean_loss += loss.detach()
        if (i + 1) % cfg.accumulate == 0:  # finds H410
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
        if dist.get_rank() == 0 and i % cfg.log_every == 0:
            print(f"[{epoch}:{i}] loss {loss.item():.4f}", flush=True)
    return mean_loss / len(loader)


@torch.no_grad()
def evaluate(model, loader, cfg, device):
    model.eval()
    confusion = torch.zeros(cfg.classes, cfg.classes, dtype=torch.long, device=device)
    for batch in loader:
        image = batch["image"].to(device)
        label = batch["label"].to(device)
        guess = model(image).argmax(1)
        known = label != 255
        pairs = label[known] * cfg.classes + guess[known]
        confusion += torch.bincount(pairs, minlength=cfg.classes ** 2).view(cfg.classes, cfg.classes)
    dist.all_reduce(confusion)
    hit = confusion.diag().float()
    return (hit / (confusion.sum(0) + confusion.sum(1) - hit).clamp(min=1)).mean().item()


def main():
    cfg = Config()
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    seed_everything(cfg.seed)

    train_loader, val_loader = make_loaders(cfg)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(build_segmenter(cfg.classes)).to(device)
    model = DDP(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.05)  # finds H307
    steps = cfg.epochs * (len(train_loader) // cfg.accumulate)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=steps, power=0.9)

    for epoch in range(cfg.epochs):
        loss = train_one_epoch(model, train_loader, optimizer, scheduler, cfg, device, epoch)
        iou = evaluate(model, val_loader, cfg, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f} mIoU {iou:.4f}")
            torch.save(model.module.state_dict(), f"segmenter_{epoch:03d}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
