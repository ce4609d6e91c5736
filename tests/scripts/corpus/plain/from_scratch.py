# -*- coding: latin-1 -*-
# Softmax regression from scratch, exercise 3.6 -- André Müller
# no nn.Module, no torch.optim
import torch
from sklearn.datasets import load_digits

torch.manual_seed(0)
batch_size = 100
num_inputs, num_outputs = 64, 10

data = load_digits()
features = torch.tensor(data.data, dtype=torch.float32) / 16
labels = torch.tensor(data.target)

W = torch.normal(0, 0.01, size=(num_inputs, num_outputs), requires_grad=True)
b = torch.zeros(num_outputs, requires_grad=True)

def data_iter(batch_size, features, labels):
    indices = torch.randperm(len(features))
    for i in range(0, len(features), batch_size):
        batch = indices[i: i + batch_size]
        yield features[batch], labels[batch]

def softmax(X):
    X_exp = torch.exp(X)
    return X_exp / X_exp.sum(1, keepdim=True)

def net(X):
    return softmax(torch.matmul(X, W) + b)

def cross_entropy(y_hat, y):
    return -torch.log(y_hat[range(len(y_hat)), y])

def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()

for epoch in range(10):
    total = 0.
    for X, y in data_iter(batch_size, features, labels):
        l = cross_entropy(net(X), y).sum()
        l.backward()
        sgd([W, b], 0.5, batch_size)
        total += float(l.detach())
    print(f'epoch {epoch + 1}, loss {total / len(labels):f}')
