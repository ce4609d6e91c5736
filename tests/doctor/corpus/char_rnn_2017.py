"""Character model (GRU, one character a time), written in the summer of 2017."""
from __future__ import print_function

import argparse
import os
import random
import string
import time

import torch
import torch.nn as nn
from torch.autograd import Variable

parser = argparse.ArgumentParser()
parser.add_argument('filename', type=str)
parser.add_argument('--n_epochs', type=int, default=2000)
parser.add_argument('--print_every', type=int, default=100)
parser.add_argument('--hidden_size', type=int, default=100)
parser.add_argument('--n_layers', type=int, default=2)
parser.add_argument('--learning_rate', type=float, default=0.01)
parser.add_argument('--chunk_len', type=int, default=200)
parser.add_argument('--batch_size', type=int, default=100)
parser.add_argument('--start_from', type=str, default='')
args = parser.parse_args()

all_characters = string.printable
index_of = {c: i for i, c in enumerate(all_characters)}

with open(args.filename) as f:
    text = f.read()


def char_tensor(s):
    return torch.LongTensor([index_of[c] for c in s])


def random_training_set(chunk_len, batch_size):
    inp, target = [], []
    for _ in range(batch_size):
        start = random.randint(0, len(text) - chunk_len - 1)
        chunk = text[start:start + chunk_len + 1]
        inp.append(char_tensor(chunk[:-1]))
        target.append(char_tensor(chunk[1:]))
    return Variable(torch.stack(inp).cuda()), Variable(torch.stack(target).cuda())


class CharRNN(nn.Module):
    def __init__(self, n_chars, hidden_size, n_layers):
        super(CharRNN, self).__init__()
        self.hidden_size = hidden_size
        self.n_layers = n_layers
        self.encoder = nn.Embedding(n_chars, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, n_layers)
        self.decoder = nn.Linear(hidden_size, n_chars)

    def forward(self, input, hidden):
        encoded = self.encoder(input)
        output, hidden = self.gru(encoded.view(1, input.size(0), -1), hidden)
        return self.decoder(output.view(input.size(0), -1)), hidden

    def init_hidden(self, batch_size):
        return Variable(torch.zeros(self.n_layers, batch_size, self.hidden_size).cuda())  # finds H203


def generate(decoder, prime='A', predict_len=100, temperature=0.8):
    decoder.eval()
    hidden = decoder.init_hidden(1)
    prime_input = Variable(char_tensor(prime).unsqueeze(0).cuda(), volatile=True)
    predicted = prime
    for p in range(len(prime) - 1):
        _, hidden = decoder(prime_input[:, p], hidden)
    inp = prime_input[:, -1]
    for p in range(predict_len):
        output, hidden = decoder(inp, hidden)
        dist = output.data.view(-1).div(temperature).exp()
        top_i = torch.multinomial(dist, 1)[0]
        predicted += all_characters[int(top_i)]
        inp = Variable(char_tensor(predicted[-1]).cuda(), volatile=True)
    decoder.train()
    return predicted


model = CharRNN(len(all_characters), args.hidden_size, args.n_layers)
if args.start_from:
    model = torch.load(args.start_from)  # finds H416
model.cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)  # finds H307
criterion = nn.CrossEntropyLoss()
criterion.cuda()


def train(inp, target):
    hidden = model.init_hidden(args.batch_size)
    model.zero_grad()
    loss = 0

    # the characters depend on one another, and the sum is what is differentiated
    for c in range(args.chunk_len):
        output, hidden = model(inp[:, c], hidden)
        loss += criterion(output, target[:, c])

    loss.backward()
    optimizer.step()
    return loss.data / args.chunk_len


start = time.time()
all_losses = []
curve = []
loss_avg = 0

print("Training for %d epochs..." % args.n_epochs)
for epoch in range(1, args.n_epochs + 1):
    loss = train(*random_training_set(args.chunk_len, args.batch_size))
    loss_avg += loss
    curve.append(loss.cpu().numpy())  # finds H201

    if epoch % args.print_every == 0:
        print('[%ds (%d %d%%) %.4f]' % (time.time() - start, epoch, epoch / args.n_epochs * 100, loss[0]))
        print(generate(model, 'Wh', 100), '\n')
        all_losses.append(loss_avg[0] / args.print_every)
        loss_avg = 0

save_filename = os.path.splitext(os.path.basename(args.filename))[0] + '.pt'
torch.save(model, save_filename)
print('Saved as %s' % save_filename)
