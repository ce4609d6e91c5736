"""Denoising diffusion on CIFAR-10 with an exponential moving average of the weights."""
import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.cuda.amp import GradScaler
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from torchvision.utils import save_image


@dataclass
class Config:
    steps: int = 1000
    epochs: int = 100
    batch_size: int = 128
    lr: float = 2e-4
    decay: float = 0.9995


cfg = Config()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
betas = torch.linspace(1e-4, 0.02, cfg.steps, device=device)
alphas = 1 - betas
alpha_bar = alphas.cumprod(0)


class ResBlock(nn.Module):
    def __init__(self, c, time_dim=128):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, c), nn.GroupNorm(8, c)
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.time = nn.Linear(time_dim, c)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return x + self.conv2(self.drop(F.silu(self.norm2(h))))


class Denoiser(nn.Module):
    def __init__(self, width=96, depth=6):
        super().__init__()
        self.embed = nn.Embedding(cfg.steps, 128)
        self.inp = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList([ResBlock(width) for _ in range(depth)])
        self.out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        emb = self.embed(t)
        h = self.inp(x)
        for block in self.blocks:
            h = block(h, emb)
        return self.out(h)


class EMA:
    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for kept, new in zip(self.model.parameters(), model.parameters()):
            kept.lerp_(new, 1 - self.decay)


def noised(x, t, noise):
    a = alpha_bar[t][:, None, None, None]
    return a.sqrt() * x + (1 - a).sqrt() * noise


@torch.no_grad()
def sample(model, n):
    x = torch.randn(n, 3, 32, 32, device=device)
    for i in reversed(range(cfg.steps)):
        t = torch.full((n,), i, device=device)
        x = (x - betas[i] / (1 - alpha_bar[i]).sqrt() * model(x, t)) / alphas[i].sqrt()
        if i > 0:
            x = x + betas[i].sqrt() * torch.randn_like(x)
    return x.clamp(-1, 1)


@torch.no_grad()
def held_out(model, loader):
    total = 0.0
    for x, _ in loader:
        x = x.to(device)
        t = torch.randint(0, cfg.steps, (len(x),), device=device)
        noise = torch.randn_like(x)
        total += F.mse_loss(model(noised(x, t, noise), t), noise).item()  # dropout is still on: finds H414
    return total / len(loader)


tf = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])
train_data = datasets.CIFAR10("data", train=True, transform=tf, download=True)
test_data = datasets.CIFAR10("data", train=False, transform=tf)
train_loader = DataLoader(train_data, batch_size=cfg.batch_size)  # finds H101 H102 H104
test_loader = DataLoader(test_data, batch_size=cfg.batch_size)

model = Denoiser().to(device)
ema = EMA(model, cfg.decay)
opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, cfg.lr, epochs=50, steps_per_epoch=len(train_loader))  # finds H404
scaler = GradScaler()  # finds H407 H408

for epoch in range(cfg.epochs):
    epoch_loss = torch.zeros((), device=device)
    for x, _ in train_loader:
        x = x.to(device)
        t = torch.randint(0, cfg.steps, (x.size(0),), device=device)
        noise = torch.randn(x.shape).to(device)  # finds H203
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.mse_loss(model(noised(x, t, noise), t), noise)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        schedule.step()
        opt.zero_grad(set_to_none=False)  # finds H303
        ema.update(model)
        epoch_loss += loss.detach()
        print("batch loss", float(loss))  # finds H201
        torch.cuda.synchronize()  # finds H306
    print(f"epoch {epoch}: train {epoch_loss.item() / len(train_loader):.4f}, test {held_out(model, test_loader):.4f}")
    if epoch % 10 == 9:
        save_image(sample(ema.model, 64) / 2 + 0.5, f"samples_{epoch:03d}.png")
        torch.save(ema.model.state_dict(), "diffusion_ema.pt")
