# CTC toy OCR. trains until max_iters, ctrl-c to stop earlier
import torch, torch.nn as nn

max_iters, bs, lr, width = 250, 32, 2e-3, 24
torch.manual_seed(64)
glyphs = (torch.rand(6, 5, 4) > .5).float()  # 5 letters (+ blank at 0), 5 px high, 4 px wide

class Data(torch.utils.data.Dataset):
    def __len__(self): return 10 ** 6
    def __getitem__(self, i):
        word = torch.randint(1, 6, (4,))
        strip = torch.zeros(5, width)
        at = 0
        for ch in word:
            at += int(torch.randint(0, 3, ()))
            strip[:, at:at + 4] = glyphs[ch]
            at += 4
        return (strip + .1 * torch.randn(5, width)).t(), word

class Reader(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.gru = nn.GRU(5, h, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(2 * h, 6)
    def forward(self, x):
        return self.fc(self.gru(x)[0]).log_softmax(-1).transpose(0, 1)

reader = Reader()
optimizer = torch.optim.Adam(reader.parameters(), lr)
train_loader = torch.utils.data.DataLoader(Data(), bs, shuffle=False)
data_iter = iter(train_loader)

it = 0
try:
    while True:
        x, words = next(data_iter)
        logp = reader(x)
        loss = nn.functional.ctc_loss(logp, words, torch.full((bs,), width), torch.full((bs,), 4))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        it += 1
        if it % 50 == 0:
            print(f"iter {it}: loss {loss.item():.4f}")
        if it >= max_iters:
            break
except KeyboardInterrupt:
    print("stopped by hand at", it)
