import math
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

# ======= settings =======
EPOCHS = 5
BATCH = 100
MAX_LR = 0.01
CLIP = 0.5
# ========================

torch.manual_seed(1618)

def spirals(n):
	k = torch.arange(n) % 3
	r = torch.rand(n)
	t = 4 * r + 2 * math.pi / 3 * k + 0.15 * torch.randn(n)
	return torch.stack([r * t.sin(), r * t.cos()], 1), k

class ResBlock(nn.Module):
	def __init__(self, dim):
		super().__init__()
		self.norm = nn.BatchNorm1d(dim)
		self.lin1 = nn.Linear(dim, dim)
		self.lin2 = nn.Linear(dim, dim)

	def forward(self, x):
		return x + self.lin2(torch.relu(self.lin1(self.norm(x))))

def make_net():
	return nn.Sequential(nn.Linear(2, 64), ResBlock(64), ResBlock(64), ResBlock(64), nn.Linear(64, 3))

train_dl = DataLoader(TensorDataset(*spirals(6000)), batch_size=BATCH, shuffle=True)
val_x, val_y = spirals(1000)

net = make_net()
opt = torch.optim.AdamW(net.parameters(), lr=MAX_LR / 25, weight_decay=1e-2)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=MAX_LR, epochs=EPOCHS, steps_per_epoch=len(train_dl))
lossf = nn.CrossEntropyLoss()

lrs, norms = [], []
for epoch in range(EPOCHS):
	net.train()
	for xb, yb in train_dl:
		loss = lossf(net(xb), yb)
		loss.backward()
		norm = nn.utils.clip_grad_norm_(net.parameters(), CLIP)
		norms.append(norm.item())
		opt.step()
		opt.zero_grad()
		lrs.append(sched.get_last_lr()[0])
		sched.step()
	net.eval()
	with torch.no_grad():
		acc = (net(val_x).argmax(1) == val_y).float().mean().item()
	print("epoch %i | loss %.6f | acc %.3f | lr %.5f | clipped %i of %i" % (
		epoch, loss.item(), acc, lrs[-1], sum(n > CLIP for n in norms), len(norms)))
