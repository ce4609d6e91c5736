"""Fit a damped wave on the CPU: a few hundred steps of Adam, then LBFGS to the bottom."""
import math

import numpy as np
import torch
from torch import nn
from torch.optim import LBFGS, Adam

rng = np.random.default_rng(3)
xs = np.linspace(0.0, 6.0, 400, dtype=np.float32)
ys = np.exp(-0.4 * xs) * np.sin(3.0 * xs) + rng.normal(0, 0.02, size=400).astype(np.float32)

x = torch.tensor(xs).unsqueeze(1)  # finds H202
y = torch.tensor(ys).unsqueeze(1)  # finds H202
weights = torch.as_tensor(np.exp(-0.1 * xs)).unsqueeze(1)
start = torch.tensor([0.5, 2.5, 1.0])
held_out = torch.from_numpy(np.linspace(6.0, 8.0, 50, dtype=np.float32)).unsqueeze(1)


class Wave(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.decay = nn.Parameter(first[0].clone())
        self.speed = nn.Parameter(first[1].clone())
        self.height = nn.Parameter(first[2].clone())

    def forward(self, t):
        return self.height * torch.exp(-self.decay * t) * torch.sin(self.speed * t)


def weighted_error(model):
    return (weights * (model(x) - y) ** 2).mean()


def warm_up(model, steps=300):
    adam = Adam(model.parameters(), lr=0.02)
    history = []
    for step in range(steps):
        adam.zero_grad()
        loss = weighted_error(model)
        loss.backward()
        adam.step()
        history.append(loss)  # finds H205
        if step % 50 == 0:
            print(step, loss.item())
    return torch.stack(history).detach().numpy()


def finish(model, rounds=25):
    lbfgs = LBFGS(model.parameters(), lr=1.0, max_iter=20, line_search_fn="strong_wolfe")
    history = []

    def closure():
        lbfgs.zero_grad()
        loss = weighted_error(model)
        loss.backward()
        return loss

    for _ in range(rounds):
        loss = lbfgs.step(closure)
        history.append(loss.item())
        print(f"lbfgs {loss.item():.8f}")
        if len(history) > 2 and math.isclose(history[-1], history[-2], rel_tol=1e-9):
            break
    return history


def residual_std(model):
    with torch.no_grad():
        return float((model(x) - y).std())


wave = Wave(start)
early = warm_up(wave)
late = finish(wave)
print("after Adam", early[-1], "after LBFGS", late[-1], "noise", residual_std(wave))
with torch.inference_mode():
    print("continued", wave(held_out).squeeze(1).tolist()[:5])

# the same with plain gradient descent, for comparison
plain = Wave(start)
sgd = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
total = 0.0
for step in range(2000):
    loss = weighted_error(plain)
    loss.backward()
    sgd.step()  # each gradient is added to all before: finds H401
    total += loss.item()
print("mean loss of plain descent", total / 2000)
