"""Deep Q-learning on LunarLander with a replay buffer of numpy arrays."""

import argparse
import random

import gymnasium as gym
import numpy as np
import torch
from torch import nn

torch.backends.cudnn.deterministic = True  # finds H305
torch.backends.cudnn.benchmark = False


class ReplayBuffer:
    def __init__(self, capacity, n_obs, device):
        self.obs = np.zeros((capacity, n_obs), dtype=np.float32)
        self.next_obs = np.zeros((capacity, n_obs), dtype=np.float32)
        self.actions = np.zeros(capacity, dtype=np.int64)
        self.rewards = np.zeros(capacity, dtype=np.float32)
        self.dones = np.zeros(capacity, dtype=np.float32)
        self.capacity, self.device = capacity, device
        self.position = self.size = 0

    def add(self, obs, action, reward, next_obs, done):
        p = self.position
        self.obs[p], self.actions[p], self.rewards[p] = obs, action, reward
        self.next_obs[p], self.dones[p] = next_obs, float(done)
        self.position = (p + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, n):
        idx = np.random.randint(0, self.size, n)
        obs = torch.tensor(self.obs[idx]).to(self.device)  # finds H202 H203
        next_obs = torch.from_numpy(self.next_obs[idx]).to(self.device)
        actions = torch.as_tensor(self.actions[idx], device=self.device)
        rewards = torch.as_tensor(self.rewards[idx], device=self.device)
        dones = torch.from_numpy(self.dones[idx]).to(self.device)
        return obs, actions, rewards, next_obs, dones


def q_network(n_obs, n_actions):
    return nn.Sequential(
        nn.Linear(n_obs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, n_actions)
    )


class Agent:
    def __init__(self, n_obs, n_actions, device, lr=5e-4, gamma=0.99):
        self.q = q_network(n_obs, n_actions).to(device)
        self.target = q_network(n_obs, n_actions).to(device)
        self.target.load_state_dict(self.q.state_dict())
        self.target.eval()
        self.optimizer = torch.optim.AdamW(self.q.parameters(), lr=lr, amsgrad=True)  # finds H307
        self.n_actions, self.device, self.gamma = n_actions, device, gamma
        self.mean_q = torch.zeros((), device=device)

    @torch.no_grad()
    def act(self, obs, epsilon):
        if random.random() < epsilon:
            return random.randrange(self.n_actions)
        return self.q(torch.as_tensor(obs, device=self.device)[None]).argmax(1).item()

    def learn(self, batch):
        obs, actions, rewards, next_obs, dones = batch
        q = self.q(obs).gather(1, actions[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.target(next_obs).max(1).values
            goal = rewards + self.gamma * (1 - dones) * best
        loss = nn.functional.smooth_l1_loss(q, goal)
        self.optimizer.zero_grad(set_to_none=False)  # finds H303
        nn.utils.clip_grad_value_(self.q.parameters(), 100)  # nothing to clip yet: finds H405
        loss.backward()
        self.optimizer.step()
        self.mean_q.lerp_(q.detach().mean(), 0.01)
        return loss.item()  # finds H201

    @torch.no_grad()
    def follow(self, tau):
        for slow, fast in zip(self.target.parameters(), self.q.parameters()):
            slow.lerp_(fast, tau)


def prefill(env, buffer, steps):
    obs, _ = env.reset()
    for _ in range(steps):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        buffer.add(obs, action, reward, following, terminated)
        obs = env.reset()[0] if terminated or truncated else following


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=400_000)
    cli.add_argument("--resume")
    args = cli.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    env = gym.make("LunarLander-v3")
    agent = Agent(env.observation_space.shape[0], env.action_space.n, device)
    if args.resume:
        agent.q.load_state_dict(torch.load(args.resume, map_location=device))  # finds H416
    buffer = ReplayBuffer(100_000, env.observation_space.shape[0], device)
    prefill(env, buffer, 5_000)

    obs, _ = env.reset()
    episode_return, finished, losses = 0.0, [], []
    for step in range(args.steps):
        epsilon = max(0.05, 1.0 - step / 50_000)
        action = agent.act(obs, epsilon)
        following, reward, terminated, truncated, _ = env.step(action)
        buffer.add(obs, action, reward, following, terminated)
        obs = following
        episode_return += reward
        if terminated or truncated:
            finished.append(episode_return)
            episode_return = 0.0
            obs, _ = env.reset()

        losses.append(agent.learn(buffer.sample(128)))
        agent.follow(0.005)
        if step % 5_000 == 0:
            recent = np.mean(finished[-20:]) if finished else float("nan")
            print(f"{step}: return {recent:.1f} loss {np.mean(losses[-5000:]):.4f} q {agent.mean_q.item():.2f}")
    torch.save(agent.q.state_dict(), "lander_q.pt")


if __name__ == "__main__":
    main()
