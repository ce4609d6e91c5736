"""Q-learning in a small maze, with a replay memory of arrays."""
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SIDE, MOVES, CAPACITY = 8, 4, 5000
GAMMA, BATCH = 0.95, 32
STEPS = [(0, 1), (0, -1), (1, 0), (-1, 0)]


class Maze:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.walls = self.rng.random((SIDE, SIDE)) < 0.2
        self.walls[0, 0] = self.walls[-1, -1] = False

    def view(self):
        board = np.zeros((2, SIDE, SIDE), dtype=np.float32)
        board[0] = self.walls
        board[1, self.row, self.column] = 1.0
        return board

    def reset(self):
        self.row = self.column = 0
        return self.view()

    def move(self, action):
        down, right = STEPS[action]
        row, column = self.row + down, self.column + right
        inside = 0 <= row < SIDE and 0 <= column < SIDE
        if inside and not self.walls[row, column]:
            self.row, self.column = row, column
        done = self.row == self.column == SIDE - 1
        return self.view(), 1.0 if done else -0.01, done


class Memory:
    def __init__(self):
        self.before = np.zeros((CAPACITY, 2, SIDE, SIDE), dtype=np.float32)
        self.after = np.zeros((CAPACITY, 2, SIDE, SIDE), dtype=np.float32)
        self.actions = np.zeros(CAPACITY, dtype=np.int64)
        self.rewards = np.zeros(CAPACITY, dtype=np.float32)
        self.count = 0

    def keep(self, before, action, reward, after):
        place = self.count % CAPACITY
        self.before[place], self.after[place] = before, after
        self.actions[place], self.rewards[place] = action, reward
        self.count += 1

    def sample(self):
        picked = random.sample(range(min(self.count, CAPACITY)), BATCH)
        before = torch.tensor([self.before[each] for each in picked])  # finds H208
        after = torch.tensor([self.after[each] for each in picked])  # finds H208
        return before, torch.from_numpy(self.actions[picked]), torch.from_numpy(self.rewards[picked]), after


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 16, 3, padding=1)
        self.out = nn.Linear(16 * SIDE * SIDE, MOVES)

    def forward(self, x):
        return self.out(F.relu(self.conv(x)).flatten(1))


def show(net, maze):
    """The values of all places that the maze can be seen from."""
    views = []
    for row in range(SIDE):
        for column in range(SIDE):
            maze.row, maze.column = row, column
            views.append(maze.view())
    with torch.no_grad():
        best = net(torch.tensor(views)).max(1).values  # finds H208
    print(best.view(SIDE, SIDE))


def main():
    random.seed(1)
    torch.manual_seed(1)
    maze, memory, net = Maze(1), Memory(), QNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for episode in range(200):
        seen = maze.reset()
        for _ in range(60):
            if random.random() < 0.2:
                action = random.randrange(MOVES)
            else:
                with torch.no_grad():
                    action = net(torch.from_numpy(seen)[None]).argmax().item()
            after, reward, done = maze.move(action)
            memory.keep(seen, action, reward, after)
            seen = after
            if done:
                break
        if memory.count < BATCH:
            continue
        for _ in range(20):
            before, actions, rewards, after = memory.sample()
            with torch.no_grad():
                target = rewards + GAMMA * net(after).max(1).values
            value = net(before).gather(1, actions[:, None]).squeeze(1)
            loss = F.smooth_l1_loss(value, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if episode % 50 == 49:
            show(net, maze)


if __name__ == "__main__":
    main()
