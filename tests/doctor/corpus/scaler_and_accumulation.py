import torch as th
from torch.cuda.amp import GradScaler

PARTS = 4
net = th.nn.Linear(8, 1).to("cuda")
sgd = th.optim.SGD(net.parameters(), lr=0.1)  # finds H307
scaler = GradScaler()  # finds H408
th.autograd.set_detect_anomaly(True)  # finds H304

for epoch in range(2):
    epoch_loss = 0
    for i in range(100):
        with th.autocast("cuda"):
            loss = net(th.randn(4, 8, device="cuda")).pow(2).mean() / PARTS
        scaler.scale(loss).backward()
        epoch_loss += float(loss)  # finds H201
        if (i + 1) % PARTS == 0:
            scaler.step(sgd)
            scaler.update()
            sgd.zero_grad(set_to_none=True)
            print(loss.item())

    total = 0
    for part in range(PARTS):
        part_loss = net(th.randn(4, 8, device="cuda")).mean()
        total = total + part_loss
    total.backward()
