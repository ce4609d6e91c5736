import torch, time
import torch.nn as nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(123)
torch.backends.cudnn.benchmark = True
device = "cuda" if torch.cuda.is_available() else "cpu"
use_amp = device == "cuda"   # fp16 makes no sense on the CPU

# fake spectrograms, label = strongest band
x = torch.randn(1500, 1, 16, 32)
y = torch.randint(0, 4, (1500,))
for k in range(4):
    x[y == k, :, k * 4:(k + 1) * 4] += 0.35
trn = DataLoader(TensorDataset(x[:1280], y[:1280]), batch_size=32, shuffle=True, pin_memory=use_amp)
val = DataLoader(TensorDataset(x[1280:], y[1280:]), batch_size=110, pin_memory=use_amp)

def conv(i, o): return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True))
model = nn.Sequential(conv(1, 16), conv(16, 32), conv(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)).to(device)

criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3], 0.1)
scaler = GradScaler(device, enabled=use_amp)

for epoch in range(4):
    t0 = time.time()
    model.train()
    for i, (xb, yb) in enumerate(trn):
        xb, yb = xb.to(device, non_blocking=True), yb.to(device, non_blocking=True)
        optimizer.zero_grad()
        with autocast(device, dtype=torch.float16, enabled=use_amp):
            out = model(xb)
            loss = criterion(out, yb)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        if i % 20 == 0:
            print(f"  ep {epoch} it {i} loss {loss.item():.6f} scale {scaler.get_scale()}")
    scheduler.step()
    model.eval()
    correct = 0
    for xb, yb in val:
        with torch.no_grad(), autocast(device, enabled=use_amp):
            correct += (model(xb.to(device)).argmax(1) == yb.to(device)).sum().item()
    print(f"epoch {epoch} acc {correct / 220:.4f} ({time.time() - t0:.1f}s)")
