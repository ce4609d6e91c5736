# heat loss of a house from 6 sensors. everything is in memory so no need for a DataLoader
import torch as th
import torch.nn.functional as F

th.manual_seed(7)
dev = 'cuda' if th.cuda.is_available() else 'cpu'

N, D, BS, EPOCHS = 8192, 6, 256, 12

X = th.randn(N, D, device=dev)
W = th.randn(D, device=dev)
Y = (th.sin(X @ W) + X[:, 0] * X[:, 1] + 0.05 * th.randn(N, device=dev)).unsqueeze(1)
n_tr = int(N * .9)
Xtr, Ytr, Xva, Yva = X[:n_tr], Y[:n_tr], X[n_tr:], Y[n_tr:]


class MLP(th.nn.Module):
  def __init__(self, d, h=128):
    super().__init__()
    self.l1 = th.nn.Linear(d, h)
    self.l2 = th.nn.Linear(h, h)
    self.l3 = th.nn.Linear(h, 1)

  def forward(self, x):
    x = F.silu(self.l1(x))
    x = x + F.silu(self.l2(x))
    return self.l3(x)


net = MLP(D).to(dev)
opt = th.optim.RMSprop(net.parameters(), lr=1e-3, alpha=0.95)

step = 0
for ep in range(EPOCHS):
  perm = th.randperm(n_tr, device=dev)
  tot = 0.
  for i in range(0, n_tr, BS):
    idx = perm[i:i+BS]
    xb, yb = Xtr[idx], Ytr[idx]
    l = F.mse_loss(net(xb), yb)
    opt.zero_grad(); l.backward(); opt.step()
    tot += l.item() * len(idx)
    step += 1
  with th.no_grad():
    va = F.mse_loss(net(Xva), Yva).item()
  print(f'{ep:3d} | {step:5d} | train {tot / n_tr:.6f} | val {va:.6f}')
