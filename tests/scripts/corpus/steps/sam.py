"""Sharpness-aware minimisation: an optimizer around an optimizer, and two backward passes an update."""
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        defaults = dict(rho=rho, **kwargs)
        super(SAM, self).__init__(params, defaults)
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = torch.norm(torch.stack([
            p.grad.norm(p=2) for group in self.param_groups for p in group["params"] if p.grad is not None]), p=2)
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()


torch.manual_seed(10)
X, y = load_breast_cancer(return_X_y=True)
X = torch.tensor((X - X.mean(0)) / X.std(0), dtype=torch.float32)
y = torch.tensor(y)
loader = DataLoader(TensorDataset(X[:480], y[:480]), batch_size=24, shuffle=True)

model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.02, momentum=0.9)

for epoch in range(8):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.first_step(zero_grad=True)
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.second_step(zero_grad=True)
    with torch.no_grad():
        acc = (model(X[480:]).argmax(1) == y[480:]).float().mean()
    print(f"epoch {epoch}: loss {loss.item():.6f} test acc {acc.item():.4f}")
