"""Monocular depth on many cards: fp16, accumulation, and switches for every slow check."""
import argparse
import contextlib
import logging
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from depthkit.data import DrivingDepth, DrivingDepthVal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader as Loader
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("depth")


def flags():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--micro", type=int, default=4, help="batches per update")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--resume", default="")
    for name in ("debug", "repeatable", "profile", "exact"):
        p.add_argument("--" + name, action="store_true")
    return p.parse_args()


class Down(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(cout)
        self.post = nn.Conv2d(cout, cout, 3, padding=1)
        self.bn_post = nn.BatchNorm2d(cout)

    def forward(self, x):
        x = F.silu(self.bn(self.conv(x)))
        return self.bn_post(F.silu(self.post(x)))


class DepthNet(nn.Module):
    def __init__(self, bins=96):
        super().__init__()
        self.stages = nn.ModuleList([Down(3, 48), Down(48, 96), Down(96, 192)])
        self.heads = nn.ModuleList([nn.Conv2d(c, bins, 1) for c in (48, 96, 192)])
        self.register_buffer("centres", torch.linspace(0.5, 80.0, bins))

    def forward(self, x):
        outs = []
        for stage, head in zip(self.stages, self.heads):
            x = stage(x)
            outs.append(head(x))
        return outs

    def metres(self, x):
        return torch.einsum("nbhw,b->nhw", self(x)[0].softmax(1), self.centres)


def loss_of(outs, target):
    """Target: the bin of each pixel; coarser heads see a thinned map."""
    total = 0.0
    for k, out in enumerate(outs):
        part = F.cross_entropy(out, target[:, ::2 ** (k + 1), ::2 ** (k + 1)], ignore_index=255)
        total = total + part / 2 ** k
    return total


@torch.inference_mode()
def abs_rel(net, loader, device):
    was = net.training
    net.eval()
    err = torch.zeros(2, device=device)
    for img, metres in loader:
        guess = net.metres(img.to(device))[:, None]
        metres = metres.to(device)
        guess = F.interpolate(guess, size=metres.shape[-2:])[:, 0]
        err += torch.stack([((guess - metres).abs() / metres).mean(), torch.ones((), device=device)])
    net.train(was)
    dist.all_reduce(err)
    return (err[0] / err[1]).item()


def main():
    args = flags()
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.autograd.set_detect_anomaly(args.debug)
    if args.repeatable:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    else:
        torch.backends.cudnn.benchmark = True
    if args.exact:
        torch.backends.cuda.matmul.allow_tf32 = False

    kw = dict(num_workers=10, pin_memory=True, persistent_workers=True)
    train_set, val_set = DrivingDepth(crop=(352, 704)), DrivingDepthVal()
    order = DistributedSampler(train_set, seed=17)
    train = Loader(train_set, 8, sampler=order, drop_last=True, **kw)
    val = Loader(val_set, 4, sampler=DistributedSampler(val_set, shuffle=False), **kw)

    net = DepthNet().to(device)
    if args.resume:
        state = torch.load(args.resume, map_location=device, weights_only=True)
        net.load_state_dict(state)
    ddp = DDP(net, device_ids=[rank])
    opt = torch.optim.AdamW(ddp.parameters(), lr=args.lr, fused=True)
    updates = -(-len(train) // args.micro)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * updates)
    scaler = torch.amp.GradScaler("cuda")

    for epoch in range(args.epochs):
        order.set_epoch(epoch)
        ddp.train()
        for i, (img, bins) in enumerate(train):
            img = img.to(device, non_blocking=True)
            bins = bins.to(device, non_blocking=True)
            last = i + 1 == len(train)
            update = last or (i + 1) % args.micro == 0
            with contextlib.nullcontext() if update else ddp.no_sync():
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = loss_of(ddp(img), bins)
                scaler.scale(loss / args.micro).backward()
            if update:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad(set_to_none=not args.debug)
                sched.step()
            if args.profile:
                torch.cuda.synchronize()
            if i % 100 == 0:
                log.info("%d/%d loss %.4f", epoch, i, loss.item())
        rel = abs_rel(net, val, device)
        torch.cuda.empty_cache()
        if rank == 0:
            log.info("epoch %d abs rel %.4f", epoch, rel)
            bare = ddp.module if isinstance(ddp, (DDP, nn.DataParallel)) else ddp
            torch.save(bare.state_dict(), f"depth_{epoch:02d}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
