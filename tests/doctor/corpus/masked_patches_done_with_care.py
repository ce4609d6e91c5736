"""Masked patches on several cards: each thing that could wait, copy or go wrong was looked at."""
import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Wrapped
from torch.utils.data import DataLoader as Loader
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.transforms import v2

arguments = argparse.ArgumentParser()
arguments.add_argument("--images", required=True)
arguments.add_argument("--epochs", type=int, default=100)
arguments.add_argument("--gather", type=int, default=4)
arguments.add_argument("--workers", type=int, default=12)
arguments.add_argument("--half", choices=("bf16", "fp16"), default="bf16")
arguments.add_argument("--profile", action="store_true")
arguments.add_argument("--reproducible", action="store_true")
arguments.add_argument("--hunt-nan", action="store_true")
arguments.add_argument("--keep-zeros", action="store_true")


class Photographs(Dataset):
    def __init__(self, root):
        self.paths = [os.path.join(root, name) for name in sorted(os.listdir(root))]
        self.prepare = v2.Compose([v2.RandomResizedCrop(128), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.prepare(Image.open(self.paths[index]).convert("RGB"))


class Filler(nn.Module):
    def __init__(self, patch=16, width=384, depth=6):
        super().__init__()
        self.patch = patch
        self.encode = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(torch.zeros(1, 64, width))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 6, batch_first=True) for _ in range(depth))
        self.decode = nn.Linear(width, 3 * patch * patch)

    def forward(self, images, hidden):
        tokens = self.encode(images).flatten(2).transpose(1, 2)
        tokens = tokens.masked_fill(hidden.unsqueeze(-1), 0.0) + self.places
        for block in self.blocks:
            tokens = block(tokens)
        return self.decode(tokens)


def error(model, images, device):
    hidden = torch.rand(len(images), 64, device=device) < 0.6
    wanted = functional.unfold(images, 16, stride=16).transpose(1, 2)
    guess = model(images, hidden)
    return functional.mse_loss(guess[hidden], wanted[hidden])


def main():
    args = arguments.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
    torch.autograd.set_detect_anomaly(args.hunt_nan)
    torch.backends.cudnn.benchmark = not args.reproducible
    if args.reproducible:
        torch.backends.cudnn.deterministic = True
        torch.backends.cuda.matmul.allow_tf32 = False

    photographs = Photographs(args.images)
    spread = DistributedSampler(photographs, drop_last=True)
    options = {"batch_size": 64, "sampler": spread, "drop_last": True}
    options.update(num_workers=args.workers, pin_memory=True, persistent_workers=True)
    loader = Loader(photographs, **options)

    model = Wrapped(Filler().to(device), device_ids=[device.index])
    dtype = torch.bfloat16 if args.half == "bf16" else torch.float16
    scaler = torch.amp.GradScaler("cuda", enabled=args.half == "fp16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
    updates = args.epochs * -(-len(loader) // args.gather)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-4, total_steps=updates, pct_start=0.05)

    for epoch in range(args.epochs):
        spread.set_epoch(epoch)
        model.train()
        losses = []
        for number, images in enumerate(loader, start=1):
            images = images.to(device, non_blocking=True)
            last = number == len(loader)
            update = number % args.gather == 0 or last
            with contextlib.nullcontext() if update else model.no_sync():
                with torch.autocast("cuda", dtype=dtype):
                    loss = error(model, images, device) / args.gather
                scaler.scale(loss).backward()
            losses.append(loss.detach())
            if update:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                schedule.step()
                optimizer.zero_grad(set_to_none=not args.keep_zeros)
            if args.profile:
                torch.cuda.synchronize()
                print(number, time.perf_counter())
        mean = torch.stack(losses).mean().item() * args.gather
        print(f"epoch {epoch}: {mean:.5f}")
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
