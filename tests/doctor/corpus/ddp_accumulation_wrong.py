"""Several GPUs, mixed precision and gradient accumulation, put together in a hurry."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torchvision
from torch.cuda.amp import GradScaler, autocast
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument('--data', default='/data/birds')
    p.add_argument('--epochs', type=int, default=40)
    p.add_argument('--bs', type=int, default=32)
    p.add_argument('--lr', type=float, default=0.2)
    p.add_argument('--init', default=None)
    return p.parse_args()


def build_model(init, classes):
    net = torchvision.models.resnet50(num_classes=classes)
    if init is not None:
        net.load_state_dict(torch.load(init, map_location='cpu'), strict=False)  # finds H416
    return net


def test(model, loader, gpu):
    """top-1 on the held-out birds"""
    model.eval()
    good = n = 0
    for x, y in loader:
        x, y = x.cuda(gpu), y.cuda(gpu)
        out = model(x)  # finds H413
        good += (out.argmax(dim=1) == y).sum().item()
        n += y.size(0)
    return good / n


def main():
    args = get_args()
    gpu = int(os.environ['LOCAL_RANK'])
    dist.init_process_group(backend='nccl')
    torch.cuda.set_device(gpu)
    torch.backends.cudnn.benchmark = False  # finds H301

    tf = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
    train_data = torchvision.datasets.ImageFolder(args.data + '/train', tf)
    test_data = torchvision.datasets.ImageFolder(args.data + '/test', transforms.Compose([
        transforms.Resize((224, 224)),
        transforms.ToTensor(),
    ]))
    sampler = DistributedSampler(train_data)  # the same order in every epoch: finds H105
    train_loader = DataLoader(train_data, batch_size=args.bs, sampler=sampler, num_workers=4)  # finds H102 H103
    test_loader = DataLoader(test_data, batch_size=args.bs, num_workers=4, persistent_workers=True)

    model = build_model(args.init, len(train_data.classes)).cuda(gpu)
    model = DistributedDataParallel(model, device_ids=[gpu])
    loss_fn = nn.CrossEntropyLoss().cuda(gpu)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)  # finds H307
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, epochs=args.epochs, steps_per_epoch=len(train_loader)
    )
    scaler = GradScaler()  # finds H408

    for epoch in range(args.epochs):
        model.train()
        running, recent = 0.0, []
        optimizer.zero_grad()
        for i, (x, y) in enumerate(train_loader):
            x = x.cuda(gpu)
            y = y.cuda(gpu)
            with autocast():  # finds H408
                out = model(x)
                loss = loss_fn(out, y)
            scaler.scale(loss).backward()  # finds H409 H411
            if i % 4 == 3:  # finds H410
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # still scaled: finds H405
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            torch.cuda.synchronize()  # finds H306
            running += loss.item()  # finds H201
            recent.append(loss)  # finds H205
            recent = recent[-50:]
            if i % 50 == 0 and dist.get_rank() == 0:
                print('epoch', epoch, 'batch', i, 'loss', sum(recent).item() / len(recent))
                torch.cuda.empty_cache()
        scheduler.step()  # a schedule of single steps: finds H403
        acc = test(model, test_loader, gpu)
        if dist.get_rank() == 0:
            print('epoch %d loss %.3f acc %.3f' % (epoch, running / len(train_loader), acc))
            torch.save(model.module.state_dict(), 'birds.pth')


if __name__ == '__main__':
    main()
