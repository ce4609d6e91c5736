"""Train ResNet-50 on a folder of images with torchrun and DistributedDataParallel, done with care."""

import argparse
import os
from contextlib import nullcontext
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms


def loaders(root, batch_size):
    grow = transforms.Compose(
        [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    fit = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()])
    train_set = datasets.ImageFolder(os.path.join(root, "train"), grow)
    val_set = datasets.ImageFolder(os.path.join(root, "val"), fit)
    common = dict(batch_size=batch_size, num_workers=8, pin_memory=True, persistent_workers=True)
    train_sampler = DistributedSampler(train_set, shuffle=True)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    train_loader = DataLoader(train_set, sampler=train_sampler, drop_last=True, **common)
    val_loader = DataLoader(val_set, sampler=val_sampler, **common)
    return train_loader, val_loader


@torch.inference_mode()
def evaluate(model, loader, device):
    model.eval()
    counts = torch.zeros(2, device=device)
    for images, targets in loader:
        images, targets = images.to(device), targets.to(device)
        counts[0] += (model(images).argmax(1) == targets).sum()
        counts[1] += len(targets)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def train_one_epoch(model, loader, optimizer, criterion, device, accum, rank):
    model.train()
    total = torch.zeros((), device=device)
    last = len(loader) - 1
    started = perf_counter()
    for step, (images, targets) in enumerate(loader):
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        targets = targets.to(device, non_blocking=True)
        boundary = (step + 1) % accum == 0 or step == last
        with nullcontext() if boundary else model.no_sync():
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = criterion(model(images), targets) / accum
            loss.backward()
        if boundary:
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        total += loss.detach()
        if rank == 0 and step % 100 == 0:
            torch.cuda.synchronize()
            rate = (step + 1) * len(images) / (perf_counter() - started)
            print(f"step {step}: loss {loss.item() * accum:.4f}, {rate:.0f} images/s")
    return total.item() * accum / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--accum", type=int, default=4)
    parser.add_argument("--resume")
    parser.add_argument("--reproducible", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("nccl")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    if args.reproducible:
        torch.backends.cudnn.deterministic = True
        torch.backends.cuda.matmul.allow_tf32 = False
    else:
        torch.backends.cudnn.benchmark = True

    model = models.resnet50(weights=None).to(device, memory_format=torch.channels_last)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DP(model, device_ids=[local_rank])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9, weight_decay=1e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    train_loader, val_loader = loaders(args.root, args.batch_size)

    start = 0
    if args.resume:
        state = torch.load(args.resume, map_location=device, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        start = state["epoch"] + 1

    for epoch in range(start, args.epochs):
        train_loader.sampler.set_epoch(epoch)
        loss = train_one_epoch(model, train_loader, optimizer, criterion, device, args.accum, rank)
        scheduler.step()
        torch.cuda.empty_cache()
        accuracy = evaluate(model, val_loader, device)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}")
            state = dict(model=model.module.state_dict(), optimizer=optimizer.state_dict(), epoch=epoch)
            torch.save(state | {"scheduler": scheduler.state_dict()}, f"resnet_{epoch:03d}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
