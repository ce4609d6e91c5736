# Matrix factorisation for ratings. Stops when the smoothed loss has not improved for `patience` steps.
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset

class EarlyStopping:
    def __init__(self, patience, min_delta=0.0):
        self.patience, self.min_delta = patience, min_delta
        self.best = None
        self.counter = 0
        self.early_stop = False

    def __call__(self, loss):
        if self.best is None or loss < self.best - self.min_delta:
            self.best = loss
            self.counter = 0
        else:
            self.counter += 1
            if self.counter >= self.patience:
                self.early_stop = True

class MF(torch.nn.Module):
    def __init__(self, n_users, n_items, dim):
        super().__init__()
        self.u = torch.nn.Embedding(n_users, dim)
        self.i = torch.nn.Embedding(n_items, dim)
        self.bu = torch.nn.Embedding(n_users, 1)
        self.bi = torch.nn.Embedding(n_items, 1)

    def forward(self, users, items):
        return 3 + (self.u(users) * self.i(items)).sum(1) + self.bu(users)[:, 0] + self.bi(items)[:, 0]

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--patience", type=int, default=60)
parser.add_argument("--max-epochs", type=int, default=50)
parser.add_argument("--lr", type=float, default=0.02)
opts = parser.parse_args()

gen = torch.Generator().manual_seed(0)
torch.manual_seed(0)
U, I, K = 400, 250, 4
pu, qi = torch.randn(U, K, generator=gen) / 2, torch.randn(I, K, generator=gen)
users = torch.randint(0, U, (20000,), generator=gen)
items = torch.randint(0, I, (20000,), generator=gen)
ratings = (3 + (pu[users] * qi[items]).sum(1) + 0.4 * torch.randn(20000, generator=gen)).clamp(1, 5)

loader = DataLoader(TensorDataset(users, items, ratings), batch_size=250, shuffle=True)
model = MF(U, I, K)
optimizer = torch.optim.Adam(model.parameters(), lr=opts.lr, weight_decay=1e-5)
stopper = EarlyStopping(opts.patience, min_delta=1e-3)

smoothed, step = None, 0
for epoch in range(opts.max_epochs):
    for u, i, r in loader:
        loss = torch.nn.functional.mse_loss(model(u, i), r)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        value = loss.item()
        smoothed = value if smoothed is None else 0.98 * smoothed + 0.02 * value
        stopper(smoothed)
        if stopper.early_stop:
            break
    print(f"epoch {epoch} step {step} loss {value:.6f} smoothed {smoothed:.6f}")
    if stopper.early_stop:
        print("early stop at step", step)
        break
