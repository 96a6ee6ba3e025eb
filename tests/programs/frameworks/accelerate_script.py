"""A user's own script for Hugging Face Accelerate: not a word about ranks, nodes or launchers."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

GLOBAL_BATCH = 64

torch.manual_seed(0)
accelerator = Accelerator()
inputs = torch.randn(GLOBAL_BATCH, 8)  # a step is the whole of the data, so that who gets which sample does not matter
targets = inputs.square().sum(dim=1, keepdim=True)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=GLOBAL_BATCH // accelerator.num_processes, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for _epoch in range(10):
    for batch, target in loader:
        loss = torch.nn.functional.mse_loss(model(batch), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

checksum = sum(weights.detach().abs().sum().item() for weights in model.parameters())
rank, local_rank = accelerator.process_index, accelerator.local_process_index
print(f"rank {rank} ({local_rank}) of {accelerator.num_processes}, weights {checksum:.6f};", flush=True)
accelerator.end_training()
