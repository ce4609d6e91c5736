import sys
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_printoptions(threshold=100000, precision=8, linewidth=200)
torch.manual_seed(13)

DEBUG = True  # FIXME turn off before the long run

X = torch.randn(1600, 32)
Y = (X[:, :8].sum(dim=1, keepdim=True) > 0).float()
dataloader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)

model = nn.Sequential(nn.Linear(32, 40), nn.Sigmoid(), nn.Linear(40, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

def dump(epoch, i, x, out, loss):
    print("=" * 120)
    print("epoch", epoch, "batch", i, "loss", loss.item())
    print("input:", x)
    print("output:", out)
    for name, param in model.named_parameters():
        print("weights of", name, param.data)
        print("gradient of", name, param.grad, "norm", param.grad.norm())
        for row in param.grad.reshape(-1).tolist():
            sys.stdout.write("    %+.17e\n" % row)
    sys.stdout.flush()

for epoch in range(2):
    for i, (x, y) in enumerate(dataloader):
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        if DEBUG:
            dump(epoch, i, x, out, loss)
        optimizer.step()

print("final loss", loss.item())
