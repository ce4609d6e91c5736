"""Train an all-convolutional classifier at changing scales on every GPU of one machine."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda import amp
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import Food101
from tqdm import tqdm

torch.backends.cudnn.benchmark = True  # the sizes change with every step: finds H301

SIZES = [160, 192, 224, 256]
NUM_EPOCHS = 50


def conv_bn(c_in, c_out, stride=1):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, stride, 1),  # finds H417
        nn.BatchNorm2d(c_out),
        nn.ReLU(inplace=True),
    )


class AllConv(nn.Module):
    def __init__(self, num_classes=101):
        super().__init__()
        self.stem = conv_bn(3, 64, stride=2)
        self.stages = nn.ModuleList([conv_bn(64, 128, 2), conv_bn(128, 256, 2), conv_bn(256, 512, 2)])
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(512, num_classes)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.fc(self.drop(x.mean(dim=(2, 3))))


class Runner:
    def __init__(self, model, train_loader, val_loader):
        self.model = nn.DataParallel(model).cuda()  # finds H501
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, foreach=True)
        self.scheduler = ReduceLROnPlateau(self.optimizer, patience=2)
        self.scaler = amp.GradScaler()  # finds H408
        self.losses = []

    def weights(self):
        if isinstance(self.model, nn.DataParallel):
            return self.model.module.state_dict()
        return self.model.state_dict()

    def train_epoch(self, epoch):
        bar = tqdm(self.train_loader, desc=f"epoch {epoch}")
        for images, labels in bar:
            images = images.cuda()  # finds H204
            labels = labels.cuda(non_blocking=True)
            size = random.choice(SIZES)
            images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
            self.optimizer.zero_grad()
            with amp.autocast():  # finds H408
                logits = self.model(images)
                loss = F.nll_loss(F.softmax(logits, dim=1), labels)  # finds H412
                self.scaler.scale(loss).backward()  # finds H406
            self.scaler.unscale_(self.optimizer)
            self.scaler.step(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)  # too late: finds H405
            self.scaler.update()
            self.losses.append(loss)  # finds H205
            bar.set_postfix(loss=loss.item(), size=size)  # finds H201

    @torch.no_grad()
    def validate(self):
        self.model.eval()  # train() never comes again: finds H415
        right = torch.zeros((), device="cuda")
        kept = []
        for images, labels in self.val_loader:
            logits = self.model(images.cuda())
            kept.append(logits)
            right += (logits.argmax(1) == labels.cuda()).sum()
        spread = torch.cat(kept).std().item()
        return right.item() / len(self.val_loader.dataset), spread

    def fit(self):
        best = 0.0
        for epoch in range(NUM_EPOCHS):
            self.train_epoch(epoch)
            accuracy, spread = self.validate()
            self.scheduler.step()  # it waits for a metric: finds H403
            print(f"epoch {epoch}: accuracy {accuracy:.3f}, spread {spread:.2f}")
            if accuracy > best:
                best = accuracy
                torch.save(self.weights(), "allconv_best.pth")


def main():
    jitter = transforms.Compose([transforms.Resize((256, 256)), transforms.TrivialAugmentWide(), transforms.ToTensor()])
    plain = transforms.Compose([transforms.Resize((224, 224)), transforms.ToTensor()])
    train_set = Food101("food", split="train", transform=jitter, download=True)
    val_set = Food101("food", split="test", transform=plain, download=True)
    train_loader = DataLoader(train_set, batch_size=256, shuffle=True, num_workers=8, pin_memory=True)  # finds H103
    val_loader = DataLoader(val_set, batch_size=256, num_workers=8, pin_memory=True)  # finds H103
    Runner(AllConv(), train_loader, val_loader).fit()


if __name__ == "__main__":
    main()
