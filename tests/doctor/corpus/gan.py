import torch
from torch import nn

device = "cuda:0"
G, D = nn.Linear(16, 32).to(device), nn.Linear(32, 1).to(device)
g_opt, d_opt = (torch.optim.Adam(m.parameters(), 2e-4) for m in (G, D))  # finds H307
bce = nn.BCEWithLogitsLoss()
d_losses, g_losses = [], []

for real in torch.utils.data.DataLoader(torch.randn(640, 32), batch_size=64):  # finds H102
    real = real.to(device)
    fake = G(torch.randn(len(real), 16, device=device))
    d_loss = bce(D(real), torch.ones(len(real), 1, device=device)) + bce(
        D(fake.detach()), torch.zeros(len(real), 1, device=device)
    )
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()

    g_loss = bce(D(fake), torch.ones(len(real), 1, device=device))
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()

    d_losses.append(d_loss)  # finds H205
    g_losses.append(g_loss.detach())
    print(d_loss.detach().cpu().numpy())  # finds H201
