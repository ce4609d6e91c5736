# From the tutorial "How to save memory by fusing the optimizer step into the backward pass", on a small net
import torch
from torch import nn
from sklearn.datasets import load_digits

torch.manual_seed(31)
X, Y = load_digits(return_X_y=True)
X, Y = torch.tensor(X, dtype=torch.float32) / 16, torch.tensor(Y)

model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))

# Instead of having just *one* optimizer, we will have a ``dict`` of optimizers
# for every parameter so we could reference them in our hook.
optimizer_dict = {p: torch.optim.Adam([p], lr=1e-3, foreach=False) for p in model.parameters()}

# Define our hook, which will call the optimizer ``step()`` and ``zero_grad()``
def optimizer_hook(parameter) -> None:
    optimizer_dict[parameter].step()
    optimizer_dict[parameter].zero_grad()

# Register the hook onto every parameter
for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)

dataset = torch.utils.data.TensorDataset(X[:1536], Y[:1536])
loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True)

for epoch in range(8):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
    with torch.no_grad():
        held_out = nn.functional.cross_entropy(model(X[1536:]), Y[1536:])
    print(epoch, loss.item(), held_out.item())
