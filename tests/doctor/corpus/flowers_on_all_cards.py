"""Flowers in folders, on every card of one machine at once, in the manner of an older lab script."""
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

SEED, EPOCHS, BATCH, CLASSES = 1, 60, 256, 102

random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)
torch.use_deterministic_algorithms(True, warn_only=True)  # finds H305


class FlowerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 48, 7, stride=2, padding=3)  # finds H417
        self.bn1 = nn.BatchNorm2d(48)
        self.conv2 = nn.Conv2d(48, 96, 3, stride=2, padding=1)  # finds H417
        self.bn2 = nn.BatchNorm2d(96)
        self.conv3 = nn.Conv2d(96, 192, 3, stride=2, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(192)
        self.attend = nn.Linear(192, 1)
        self.fc = nn.Linear(192, CLASSES)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        x = x.flatten(2).transpose(1, 2)
        where = F.softmax(self.attend(x), dim=1)
        x = self.fc((where * x).sum(dim=1))
        return F.log_softmax(x, dim=1)  # the criterion does it again: finds H412


stats = dict(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
train_tf = transforms.Compose([
    transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
    transforms.ToTensor(), transforms.Normalize(**stats),
])
test_tf = transforms.Compose([
    transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), transforms.Normalize(**stats),
])
train_loader = DataLoader(  # finds H102 H103
    ImageFolder("flowers/train", train_tf), batch_size=BATCH, shuffle=True, num_workers=16
)
test_loader = DataLoader(ImageFolder("flowers/test", test_tf), batch_size=BATCH, num_workers=16)

model = nn.DataParallel(FlowerNet()).cuda()  # finds H501
criterion = nn.CrossEntropyLoss().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)  # finds H307
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[30, 45], gamma=0.1)
scaler = torch.cuda.amp.GradScaler()  # finds H407 H408

for epoch in range(EPOCHS):
    model.train()
    started = time.time()
    loss_sum = 0.0
    for i, (images, target) in enumerate(train_loader):
        images = images.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        with torch.cuda.amp.autocast(dtype=torch.bfloat16):  # finds H408
            output = model(images)
            loss = criterion(output, target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()  # so that the time is right: finds H306
        loss_sum += loss.item()  # finds H201
        if i % 20 == 0:
            print("Epoch %d [%d/%d] loss %.4f" % (epoch, i, len(train_loader), loss.item()))
    scheduler.step()
    torch.cuda.synchronize()
    print("epoch took %.1fs, loss %.4f" % (time.time() - started, loss_sum / len(train_loader)))

# the held-out flowers are looked at once, when all is done
model.eval()
right = 0
with torch.no_grad():
    for images, target in test_loader:
        output = model(images.cuda())
        right += (output.argmax(1).cpu() == target).sum().item()
print("test accuracy %.4f" % (right / len(test_loader.dataset)))
torch.save(model.module.state_dict(), "flowers.pth")
