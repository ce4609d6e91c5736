"""usage: compiled.py [--compile] [--steps N]"""
import sys
import torch
import torch.nn as nn
import torch.nn.functional as F

COMPILE = "--compile" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 120

torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.g = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.g


class GatedMLP(nn.Module):
    def __init__(self, dim, mult=4):
        super().__init__()
        self.norm = RMSNorm(dim)
        self.w1 = nn.Linear(dim, dim * mult, bias=False)
        self.w2 = nn.Linear(dim, dim * mult, bias=False)
        self.w3 = nn.Linear(dim * mult, dim, bias=False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.w3(F.silu(self.w1(h)) * self.w2(h))


class Mixer(nn.Module):
    """Adds two numbers given as digits, all places at once."""

    def __init__(self, digits=3, dim=96, depth=3):
        super().__init__()
        self.inp = nn.Linear(2 * digits * 10, dim)
        self.blocks = nn.ModuleList([GatedMLP(dim) for _ in range(depth)])
        self.out = nn.Linear(dim, (digits + 1) * 10)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = b(x)
        return self.out(x).unflatten(-1, (-1, 10))


def batch(n, digits=3):
    a, b = torch.randint(0, 10 ** digits, (2, n))
    places = lambda v, k: torch.stack([v // 10 ** i % 10 for i in range(k)], -1)
    x = torch.cat([places(a, digits), places(b, digits)], -1)
    return F.one_hot(x, 10).float().flatten(1), places(a + b, digits + 1)


model = Mixer()
raw_model = model
if COMPILE:
    print("compiling the model...")
    model = torch.compile(model)
optimizer = torch.optim.AdamW(raw_model.parameters(), lr=2e-3, betas=(0.9, 0.95))
for step in range(STEPS):
    x, y = batch(256)
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step}: {loss.item():.5f}")
