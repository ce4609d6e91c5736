"""Fine-tunes a ResNet on folders of flower photographs, in the manner of 2017."""
from __future__ import division, print_function

import argparse
import os
import shutil
import time

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.optim
import torch.utils.data
import torch.utils.data.distributed
import torchvision.datasets as datasets
import torchvision.models as models
import torchvision.transforms as transforms
from torch.autograd import Variable
from torch.optim import lr_scheduler

parser = argparse.ArgumentParser(description='flowers')
parser.add_argument('data', metavar='DIR')
parser.add_argument('-j', '--workers', default=4, type=int)
parser.add_argument('--epochs', default=30, type=int)
parser.add_argument('-b', '--batch-size', default=64, type=int)
parser.add_argument('--lr', default=0.01, type=float)
parser.add_argument('--print-freq', '-p', default=20, type=int)
parser.add_argument('--resume', default='', type=str)
parser.add_argument('--seed', default=None, type=int)
parser.add_argument('--distributed', action='store_true')
best_prec1 = 0


class AverageMeter(object):
    def __init__(self):
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def main():
    global best_prec1
    args = parser.parse_args()
    if args.seed is not None:
        torch.manual_seed(args.seed)
        cudnn.deterministic = True

    model = models.resnet50(pretrained=True)
    model.fc = nn.Linear(model.fc.in_features, 102)
    model = torch.nn.DataParallel(model).cuda()  # finds H501
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)  # finds H307
    scheduler = lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)

    if args.resume:
        checkpoint = torch.load(args.resume)  # finds H416
        best_prec1 = checkpoint['best_prec1']
        model.load_state_dict(checkpoint['state_dict'])

    cudnn.benchmark = True

    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    train_dataset = datasets.ImageFolder(os.path.join(args.data, 'train'), transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        normalize,
    ]))
    if args.distributed:
        train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)
    else:
        train_sampler = None
    train_loader = torch.utils.data.DataLoader(  # finds H103
        train_dataset, batch_size=args.batch_size, shuffle=(train_sampler is None),
        num_workers=args.workers, pin_memory=True, sampler=train_sampler)
    val_loader = torch.utils.data.DataLoader(  # finds H103
        datasets.ImageFolder(os.path.join(args.data, 'val'), transforms.Compose([
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            normalize,
        ])),
        batch_size=args.batch_size, shuffle=False, num_workers=args.workers, pin_memory=True)

    for epoch in range(args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        scheduler.step()  # finds H402
        train(train_loader, model, criterion, optimizer, epoch, args.print_freq)
        prec1 = validate(val_loader, model, criterion)
        is_best = prec1 > best_prec1
        best_prec1 = max(prec1, best_prec1)
        torch.save({'epoch': epoch + 1, 'state_dict': model.state_dict(), 'best_prec1': best_prec1}, 'last.pth.tar')
        if is_best:
            shutil.copyfile('last.pth.tar', 'best.pth.tar')


def train(train_loader, model, criterion, optimizer, epoch, print_freq):
    batch_time = AverageMeter()
    losses = AverageMeter()
    model.train()
    end = time.time()
    for i, (input, target) in enumerate(train_loader):
        input_var = Variable(input.cuda())  # finds H204
        target_var = Variable(target.cuda())  # finds H204

        output = model(input_var)
        loss = criterion(output, target_var)
        losses.update(loss.data, input.size(0))

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        batch_time.update(time.time() - end)
        end = time.time()
        if i % print_freq == 0:
            print('Epoch: [{0}][{1}/{2}]\tTime {3:.3f}\tLoss {4:.4f}'.format(
                epoch, i, len(train_loader), batch_time.avg, losses.avg[0]))


def validate(val_loader, model, criterion):
    losses, top1 = AverageMeter(), AverageMeter()
    model.eval()
    for i, (input, target) in enumerate(val_loader):
        # volatile does nothing any more
        input_var = Variable(input.cuda(), volatile=True)
        target_var = Variable(target.cuda(), volatile=True)
        output = model(input_var)  # finds H413
        loss = criterion(output, target_var)
        _, pred = output.data.max(1)
        prec1 = pred.eq(target_var.data).float().mean() * 100
        losses.update(loss.data, input.size(0))
        top1.update(float(prec1), input.size(0))
    print(' * Prec@1 {:.3f}'.format(top1.avg))
    return top1.avg


if __name__ == '__main__':
    main()
