# Physics-informed fit: u'' + u = 0, u(0)=0, u'(0)=1, so u = sin(x)
# LBFGS with a closure, full batch
import math

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
x = torch.linspace(0, 2 * math.pi, 100).reshape(-1, 1).requires_grad_(True)
x0 = torch.zeros(1, 1, requires_grad=True)

optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=20, history_size=50, line_search_fn="strong_wolfe")

evaluations = 0


def derivative(u, x):
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


def residual():
    u = net(x)
    u_xx = derivative(derivative(u, x), x)
    u0 = net(x0)
    return ((u_xx + u) ** 2).mean() + (u0 ** 2).mean() + ((derivative(u0, x0) - 1) ** 2).mean()


def closure():
    global evaluations
    evaluations += 1
    optimizer.zero_grad()
    loss = residual()
    loss.backward()
    return loss


for it in range(25):
    loss = optimizer.step(closure)
    if it % 5 == 4:
        with torch.no_grad():
            err = (net(x) - torch.sin(x)).abs().max()
        print(f"iter {it + 1:3d}  closures {evaluations:4d}  loss {loss.item():.3e}  max error {err.item():.3e}")
