import torch
import numpy as np
from copy import deepcopy
from torch.utils.data import DataLoader, Dataset

class EMA:
    def __init__(self, model, decay=0.97):
        self.ema = deepcopy(model).eval()
        self.decay = decay
        for p in self.ema.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, m in zip(self.ema.state_dict().values(), model.state_dict().values()):
            if e.dtype.is_floating_point:
                e.mul_(self.decay).add_(m, alpha=1 - self.decay)
            else:
                e.copy_(m)

class Ecg(Dataset):
    """one beat with or without an extra bump"""
    def __init__(self, n, seed):
        rs = np.random.RandomState(seed)
        t = np.linspace(0, 1, 96)
        self.y = rs.randint(0, 2, n)
        self.x = np.exp(-((t - 0.5) / 0.03) ** 2)[None] + 0.3 * rs.randn(n, 96)
        at = rs.uniform(0.1, 0.9, (n, 1))
        self.x += self.y[:, None] * 0.9 * np.exp(-((t[None] - at) / 0.05) ** 2)
    def __len__(self): return len(self.y)
    def __getitem__(self, i): return np.float32(self.x[i][None]), self.y[i]

def net():
    C = torch.nn.Conv1d
    return torch.nn.Sequential(
        C(1, 16, 7, stride=2), torch.nn.BatchNorm1d(16), torch.nn.ReLU(),
        C(16, 32, 5, stride=2), torch.nn.BatchNorm1d(32), torch.nn.ReLU(),
        torch.nn.AdaptiveMaxPool1d(1), torch.nn.Flatten(), torch.nn.Linear(32, 2))

def accuracy(m, loader):
    was = m.training
    m.eval()
    with torch.no_grad():
        ok = [(m(x).argmax(1) == y).float().mean().item() for x, y in loader]
    m.train(was)
    return sum(ok) / len(ok)

torch.manual_seed(4)
model = net()
ema = EMA(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 ** epoch)
train_dl = DataLoader(Ecg(2000, 1), batch_size=40, shuffle=True)
val_dl = DataLoader(Ecg(400, 2), batch_size=100)

for epoch in range(4):
    for x, y in train_dl:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        ema.update(model)
    scheduler.step()
    print(f"{epoch} loss={loss.item():.6f} acc={accuracy(model, val_dl):.4f} ema_acc={accuracy(ema.ema, val_dl):.4f}")
