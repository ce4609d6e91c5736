from functools import partial

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

# helpers

def exists(x):
    return x is not None

def default(val, d):
    return val if exists(val) else d

def cycle(dl):
    while True:
        for data in dl:
            yield data

def extract(a, t, x_shape):
    return a.gather(-1, t).reshape(t.shape[0], *((1,) * (len(x_shape) - 1)))

# model

class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        freqs = torch.exp(torch.arange(self.dim // 2) * -(9.21 / (self.dim // 2 - 1)))
        emb = t[:, None] * freqs[None, :]
        return torch.cat((emb.sin(), emb.cos()), dim = -1)

class Block(nn.Module):
    def __init__(self, dim, dim_out = None, *, time_dim, groups = 4):
        super().__init__()
        dim_out = default(dim_out, dim)
        self.proj = nn.Conv2d(dim, dim_out, 3, padding = 1)
        self.norm = nn.GroupNorm(groups, dim_out)
        self.act = nn.SiLU()
        self.to_shift = nn.Linear(time_dim, dim_out)
        self.res = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x, t):
        h = self.act(self.norm(self.proj(x)) + self.to_shift(t)[:, :, None, None])
        return h + self.res(x)

class Denoiser(nn.Module):
    def __init__(self, dim = 24, time_dim = 32, depth = 3):
        super().__init__()
        self.time_mlp = nn.Sequential(SinusoidalPosEmb(time_dim), nn.Linear(time_dim, time_dim), nn.SiLU())
        block = partial(Block, time_dim = time_dim)
        self.stem = nn.Conv2d(1, dim, 3, padding = 1)
        self.blocks = nn.ModuleList([block(dim) for _ in range(depth)])
        self.final = nn.Conv2d(dim, 1, 1)

    def forward(self, x, t):
        t, x = self.time_mlp(t), self.stem(x)
        for blk in self.blocks:
            x = blk(x, t)
        return self.final(x)

class GaussianDiffusion(nn.Module):
    def __init__(self, model, *, timesteps = 100):
        super().__init__()
        self.model, self.timesteps = model, timesteps
        betas = torch.linspace(1e-3, 0.08, timesteps)
        alphas_cumprod = torch.cumprod(1. - betas, dim = 0)
        self.register_buffer('betas', betas)
        self.register_buffer('sqrt_ac', alphas_cumprod.sqrt())
        self.register_buffer('sqrt_om', (1. - alphas_cumprod).sqrt())

    def forward(self, img):
        t = torch.randint(0, self.timesteps, (img.shape[0],), device = img.device)
        noise = torch.randn_like(img)
        x_t = extract(self.sqrt_ac, t, img.shape) * img + extract(self.sqrt_om, t, img.shape) * noise
        return F.mse_loss(self.model(x_t, t), noise)

    @torch.inference_mode()
    def sample(self, n):
        img = torch.randn(n, 1, 8, 8)
        for step in reversed(range(self.timesteps)):
            t = torch.full((n,), step)
            eps = self.model(img, t)
            img = (img - self.betas[step] / self.sqrt_om[step] * eps) / (1 - self.betas[step]).sqrt()
            if step > 0:
                img = img + self.betas[step].sqrt() * torch.randn_like(img)
        return img

# train

torch.manual_seed(2023)
data = torch.tensor(load_digits().images, dtype = torch.float32).unsqueeze(1) / 8 - 1
dl = cycle(DataLoader(data, batch_size = 32, shuffle = True))

diffusion = GaussianDiffusion(Denoiser())
opt = torch.optim.Adam(diffusion.parameters(), lr = 1e-3, betas = (0.9, 0.99))

for step in range(200):
    loss = diffusion(next(dl))
    loss.backward()
    opt.step()
    opt.zero_grad()
    if step % 40 == 39:
        print(f'{step + 1}: {loss.item():.5f}')

print('sampled mean', diffusion.sample(4).mean().item())
