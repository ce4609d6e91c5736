"""Masked prediction of speech units on one card: bf16, streamed shards, a replayed teacher."""
import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as fun
from torch import nn, optim
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info


@dataclass
class Settings:
    shards: list = field(default_factory=lambda: [f"/data/units/{k:04d}.npz" for k in range(512)])
    steps: int = 60_000
    tune_epochs: int = 6
    window: int = 512
    units: int = 500
    lr: float = 6e-4
    device: str = "cuda"


class Stream(IterableDataset):
    def __init__(self, shards, window):
        self.shards, self.window = shards, window

    def __iter__(self):
        info = get_worker_info()
        mine = self.shards if info is None else self.shards[info.id::info.num_workers]
        for path in itertools.cycle(mine):
            z = np.load(path)
            feats, units = z["feats"], z["units"].astype(np.int64)
            for s in range(0, len(units) - self.window, self.window):
                yield torch.from_numpy(feats[s:s + self.window]), torch.from_numpy(units[s:s + self.window])


class Encoder(nn.Module):
    def __init__(self, units, width=384, depth=8):
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(80, width), nn.LayerNorm(width), nn.Dropout(0.1))
        self.mask = nn.Parameter(torch.zeros(width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 6, batch_first=True, norm_first=True) for _ in range(depth))
        self.out = nn.Linear(width, units)

    def forward(self, x, hidden=None):
        x = self.inp(x)
        if hidden is not None:
            x = torch.where(hidden[..., None], self.mask, x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def on_cuda(loader, device):
    """Yields the batches with their copies already under way."""
    for batch in loader:
        yield tuple(t.to(device, non_blocking=True) for t in batch)


def pretrain(cfg, net):
    loader = DataLoader(Stream(cfg.shards, cfg.window), batch_size=32, num_workers=8, pin_memory=True)
    opt = optim.AdamW(net.parameters(), lr=cfg.lr, betas=(0.9, 0.98), fused=True)
    sched = optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / 2000, math.sqrt(2000 / (s + 1))))
    host = torch.Generator().manual_seed(1)
    recent = torch.zeros((), device=cfg.device)
    net.train()
    for step, (x, u) in zip(range(cfg.steps), on_cuda(loader, cfg.device)):
        hidden = (torch.rand(u.shape, generator=host) < 0.4).to(cfg.device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = net(x, hidden)
            loss = fun.cross_entropy(logits[hidden], u[hidden])
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        for p in net.parameters():
            p.grad = None
        recent = recent.lerp(loss.detach().float(), 0.01)
        if step % 500 == 0:
            print(f"{step:6d}  loss {recent.item():.3f}  lr {sched.get_last_lr()[0]:.2e}")


@torch.no_grad()
def teach(net, loader, device):
    net.eval()
    soft = []
    for x, _ in loader:
        soft.append(net(x.to(device)).log_softmax(-1))
    return torch.cat(soft)


def tune(cfg, net, student):
    """Distils into the student; all of it stays on the card, so its loader has nothing to copy."""
    z = np.load("/data/units/tune.npz")
    feats, units = torch.from_numpy(z["feats"]), torch.from_numpy(z["units"].astype(np.int64))
    soft = teach(net, DataLoader(TensorDataset(feats, units), batch_size=64), cfg.device)
    near = TensorDataset(feats.to(cfg.device), units.to(cfg.device), soft)
    loader = DataLoader(near, batch_size=64, shuffle=True)
    opt = optim.Adam(student.parameters(), lr=cfg.lr, foreach=True)
    sched = optim.lr_scheduler.OneCycleLR(opt, cfg.lr, total_steps=cfg.tune_epochs)
    plateau = []
    for epoch in range(cfg.tune_epochs):
        student.train()
        losses = []
        for x, u, s in loader:
            opt.zero_grad()
            logp = student(x).log_softmax(-1)
            hard = fun.nll_loss(logp.flatten(0, 1), u.flatten())
            both = hard + fun.kl_div(logp, s, log_target=True, reduction="batchmean")
            both.backward()
            opt.step()
            losses.append(both.detach())
        sched.step()
        plateau.append(torch.stack(losses).mean().item())
    return torch.tensor(plateau)


def main():
    cfg = Settings()
    torch.set_float32_matmul_precision("high")
    net = Encoder(cfg.units).to(cfg.device)
    pretrain(cfg, net)
    torch.save(net.state_dict(), "units.pt")
    net.load_state_dict(torch.load("units.pt", weights_only=True, map_location=cfg.device))
    small = Encoder(cfg.units, width=192, depth=4).to(cfg.device)
    print("tuned:", [round(v, 3) for v in tune(cfg, net, small).tolist()])
    torch.save(small.state_dict(), "units_small.pt")


if __name__ == "__main__":
    main()
