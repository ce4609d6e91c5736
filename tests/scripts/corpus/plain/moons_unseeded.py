from sklearn.datasets import make_moons
import torch
from torch.utils.data import DataLoader, TensorDataset

x, y = make_moons(2000, noise=0.2)
x = torch.FloatTensor(x)
y = torch.FloatTensor(y).reshape(-1, 1)

loader = DataLoader(TensorDataset(x, y), 50, True)

class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(2, 32)
        self.drop = torch.nn.Dropout(p=0.1)
        self.out = torch.nn.Linear(32, 1)
    def forward(self, x):
        return torch.sigmoid(self.out(self.drop(torch.tanh(self.hidden(x)))))

clf = Classifier()
loss_func = torch.nn.BCELoss()
optim = torch.optim.Adam(clf.parameters(), lr=0.01)

losses = []
for epoch in range(10):
    for bx, by in loader:
        out = clf(bx)
        loss = loss_func(out, by)
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.data.numpy())   # keep as numpy for plotting
    print('epoch', epoch, 'loss', losses[-1])

acc = ((clf(x) > 0.5).float() == y).float().mean()
print('acc', float(acc))
