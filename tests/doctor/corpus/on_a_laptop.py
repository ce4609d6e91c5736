"""Nothing here goes to an accelerator: a read waits for nothing."""

import torch

model = torch.nn.Linear(4, 1)
adam = torch.optim.Adam(model.parameters())
losses = []
for step in range(1000):
    loss = model(torch.randn(8, 4)).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    losses.append(loss.item())
    print(loss.item())
