"""A net with binary weights through a function of our own; pretraining, then fine tuning."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda.amp import custom_bwd, custom_fwd
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

PRETRAIN_EPOCHS = 20
TUNE_EPOCHS = 12
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SignSTE(torch.autograd.Function):
    @staticmethod
    @custom_fwd(cast_inputs=torch.float32)  # finds H408
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return w.sign()

    @staticmethod
    @custom_bwd  # finds H408
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return grad * (w.abs() <= 1)


class BinaryLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, SignSTE.apply(self.weight), self.bias)


class BinaryNet(nn.Module):
    def __init__(self, inputs, classes, hidden=1024):
        super().__init__()
        self.first = BinaryLinear(inputs, hidden, bias=False)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = BinaryLinear(hidden, classes)

    def forward(self, x):
        return self.second(F.hardtanh(self.norm(self.first(x))))


class NearestCode(nn.Module):
    """Names the code word that differs least from each row."""

    def __init__(self, codes):
        super().__init__()
        self.register_buffer("codes", codes)

    def forward(self, rows):
        found = []
        for row in rows.sign():  # finds H207
            found.append((self.codes != row).sum(1).argmin())
        return torch.stack(found)


def pretrain(model, loader):
    opt = AdamW(model.parameters(), lr=1e-3)  # finds H307
    sched = OneCycleLR(opt, max_lr=1e-2, total_steps=PRETRAIN_EPOCHS)  # finds H404
    scaler = torch.amp.GradScaler("cuda")  # finds H407
    total = 0.0
    for epoch in range(PRETRAIN_EPOCHS):
        model.train()
        for rows, labels in loader:
            rows = rows.to(dev, non_blocking=True)
            labels = labels.to(dev, non_blocking=True)
            opt.zero_grad(set_to_none=False)  # finds H303
            with torch.autocast(dev.type, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(rows), labels)
                scaler.scale(loss).backward()  # finds H406
            scaler.unscale_(opt)
            scaler.step(opt)
            nn.utils.clip_grad_value_(model.parameters(), 0.1)  # too late: finds H405
            scaler.update()
            sched.step()
            total += loss * len(rows)  # finds H205
            torch.cuda.empty_cache()  # finds H302
    return float(total)


def fine_tune(model, loader):
    opt = SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    sched = MultiStepLR(opt, milestones=[TUNE_EPOCHS // 2, 3 * TUNE_EPOCHS // 4])
    for epoch in range(TUNE_EPOCHS):
        model.train()
        for n, (rows, labels) in enumerate(loader):
            rows = rows.to(dev, non_blocking=True)
            labels = labels.to(dev, non_blocking=True)
            loss = F.cross_entropy(model(rows), labels)
            loss.backward()
            opt.zero_grad()  # all is lost before the step: finds H401
            opt.step()
            sched.step()  # milestones of epochs, steps of batches: finds H403
            print(f"{epoch} {n} {loss.item():.4f}")  # finds H201


def accuracy(model, loader):
    model.eval()
    right = 0
    for rows, labels in loader:
        right += (model(rows.to(dev)).argmax(1) == labels.to(dev)).sum().item()  # finds H413
    return right / len(loader.dataset)


def main():
    stored = torch.load("signs.pt", weights_only=False)
    train = TensorDataset(stored["rows"], stored["labels"])
    test = TensorDataset(stored["test_rows"], stored["test_labels"])
    loader = DataLoader(train, batch_size=512, shuffle=True, pin_memory=True)
    test_loader = DataLoader(test, batch_size=2048)
    net = BinaryNet(train.tensors[0].shape[1], int(train.tensors[1].max()) + 1)
    model = nn.DataParallel(net.to(dev))  # finds H501
    print("loss in all", pretrain(model, loader), "accuracy", accuracy(model, test_loader))
    fine_tune(model, loader)
    print("accuracy", accuracy(model, test_loader))
    nearest = NearestCode(net.second.weight.detach().sign())
    print("codes", nearest(net.norm(net.first(stored["test_rows"][:9].to(dev)))))


if __name__ == "__main__":
    main()
