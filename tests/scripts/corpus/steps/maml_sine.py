"""MAML on sine waves. Gradients come from torch.autograd.grad only, inner and outer."""
from collections import OrderedDict
from typing import Dict, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

META_LR, INNER_LR = 1e-3, 0.01
INNER_STEPS, TASKS, SHOTS = 2, 8, 10
META_ITERATIONS = 150


class SineNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(OrderedDict(
            fc1=nn.Linear(1, 40), act1=nn.ReLU(), fc2=nn.Linear(40, 40), act2=nn.ReLU(), out=nn.Linear(40, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def sample_task(gen: torch.Generator) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    amplitude = 0.1 + 4.9 * torch.rand(1, generator=gen)
    phase = 3.14159 * torch.rand(1, generator=gen)
    x = 10 * torch.rand(2 * SHOTS, 1, generator=gen) - 5
    y = amplitude * torch.sin(x - phase)
    return x[:SHOTS], y[:SHOTS], x[SHOTS:], y[SHOTS:]


def adapt(model: nn.Module, x: Tensor, y: Tensor, create_graph: bool) -> Dict[str, Tensor]:
    params = dict(model.named_parameters())
    for _ in range(INNER_STEPS):
        loss = F.mse_loss(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=create_graph)
        params = {name: p - INNER_LR * g for (name, p), g in zip(params.items(), grads)}
    return params


def meta_train() -> None:
    gen = torch.Generator().manual_seed(17)
    torch.manual_seed(17)
    model = SineNet()
    meta_params: List[nn.Parameter] = list(model.parameters())
    meta_optimizer = torch.optim.Adam(meta_params, lr=META_LR)

    for iteration in range(META_ITERATIONS):
        query_losses = []
        for _ in range(TASKS):
            xs, ys, xq, yq = sample_task(gen)
            fast = adapt(model, xs, ys, create_graph=True)
            query_losses.append(F.mse_loss(functional_call(model, fast, (xq,)), yq))
        meta_loss = torch.stack(query_losses).mean()
        for p, g in zip(meta_params, torch.autograd.grad(meta_loss, meta_params)):
            p.grad = g
        meta_optimizer.step()
        if (iteration + 1) % 25 == 0:
            print(f"[{iteration + 1:4d}] meta loss {meta_loss.item():.6f}")


if __name__ == "__main__":
    meta_train()
