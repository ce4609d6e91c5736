"""CIFAR-10 with everything imported by star or under another name."""

from torch import *
from torch.nn import *
from torch.optim import *

import torch as T
import torch.backends.cudnn as cud
import torch.cuda as gpu
import torch.nn.functional as fn
import torch.utils.data as D
import torchvision.transforms as TT
from torch.cuda.amp import GradScaler as Scaler, autocast as mixed
from torch.optim.lr_scheduler import MultiStepLR as Milestones, OneCycleLR as Cycle
from torch.utils.data import DataLoader as Feed
from torchvision.datasets import CIFAR10 as Data

BATCH, EPOCHS = 256, 30
where = T.device("cuda:0")
common = dict(batch_size=BATCH, num_workers=4)

cud.benchmark = True
T.use_deterministic_algorithms(True)  # finds H305
T.backends.cuda.matmul.allow_tf32 = True


def unit(a, b):
    return Sequential(Conv2d(a, b, 3, padding=1), BatchNorm2d(b), ReLU())  # finds H417


class Net(Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = unit(3, 64), unit(64, 128), unit(128, 256)
        self.reduce = Conv2d(256, 64, 1, bias=False)
        self.norm = BatchNorm2d(64)
        self.out = Linear(64, 10)

    def forward(self, x):
        x = fn.max_pool2d(self.one(x), 2)
        x = fn.max_pool2d(self.two(x), 2)
        x = self.norm(self.reduce(self.three(x)))
        return self.out(fn.relu(x).mean((2, 3)))


def accuracy(net, feed):
    net.eval()
    hits = 0
    with inference_mode():
        for x, y in feed:
            hits += (net(x.to(where)).argmax(1) == y.to(where)).sum().item()
    net.train()
    return hits / len(feed.dataset)


def first_phase(net, train):
    """Mixed precision with a cycle that belongs to each batch."""
    opt = SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)  # finds H307
    cycle = Cycle(opt, 0.4, total_steps=EPOCHS * len(train))
    scaler = Scaler()  # finds H408
    for epoch in range(EPOCHS):
        for x, y in train:
            x, y = x.to(where), y.to(where)
            with mixed():  # finds H408
                guess = net(x)
                loss = fn.cross_entropy(fn.log_softmax(guess, 1), y)  # finds H412
            opt.zero_grad(set_to_none=False)  # finds H303
            scaler.scale(loss).backward()
            scaler.step(opt)
            T.nn.utils.clip_grad_value_(net.parameters(), 0.5)  # finds H405
            scaler.update()
            cycle.step()
            gpu.empty_cache()  # finds H302
        print("first", epoch, loss.item())


def second_phase(net, train, test):
    """Full precision, small steps, a schedule of epochs."""
    opt = AdamW(net.parameters(), 1e-4, fused=True)
    steps = Milestones(opt, [4, 8])
    smooth = zeros(10, device=where)
    mixing = eye(10).to(where)  # finds H203
    for epoch in range(10):
        for x, y in train:
            x, y = x.to(where), y.to(where)
            target = 0.9 * mixing[y] + 0.1 * full_like(smooth, 0.1)
            loss = -(target * fn.log_softmax(net(x), 1)).sum(1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            smooth.lerp_(target.mean(0), 0.01)
        steps.step()
        gpu.empty_cache()
        print("second", epoch, accuracy(net, test))


def last_phase(net, train):
    """The output layer alone; its state comes from the checkpoint of the colleague."""
    before = T.load("colleague.pth", map_location=where)  # finds H416
    net.load_state_dict(before["net"])
    for p in net.parameters():
        p.requires_grad_(False)
    net.out.weight.requires_grad_(True)
    opt = Adam([net.out.weight], 1e-3)  # finds H307
    trace = []
    for x, y in train:
        logits = net(x.to(where))
        loss = fn.cross_entropy(logits, y.to(where))
        loss.backward()
        opt.step()  # finds H401
        trace.append(logits.detach())
    return cat(trace)


def main():
    ready = TT.Compose([TT.ToTensor(), TT.Normalize((0.5,) * 3, (0.25,) * 3)])
    noisy = TT.Compose([TT.RandomCrop(32, 4), TT.RandomHorizontalFlip(), ready])
    train = Feed(Data("data", True, noisy, download=True), shuffle=True, **common)  # finds H102 H103
    test = Feed(Data("data", False, ready), persistent_workers=True, **common)
    net = DataParallel(Net().to(where))  # finds H501
    first_phase(net, train)
    second_phase(net, train, test)
    T.save({"net": net.module.state_dict()}, "cifar.pth")
    plain = Net().to(where)
    plain.load_state_dict(T.load("cifar.pth", weights_only=True)["net"])
    once = Feed(D.Subset(train.dataset, range(5000)), BATCH, num_workers=2)  # finds H102 H104
    print(last_phase(plain, once).shape)


if __name__ == "__main__":
    main()
