import torch

device = "cuda"
model = torch.nn.Linear(4, 1).to(device)
opt = torch.optim.AdamW(model.parameters())  # finds H307
losses, kept = [], []
for x in torch.randn(100, 8, 4).to(device):  # finds H203
    loss = model(x).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    kept.append(loss.detach())
    loss = loss.item()  # finds H201
    losses.append(loss)
    print(sum(losses) / len(losses))
