"""A user's own script for Lightning: ranks are Lightning's business, how many there are comes from the environment."""

import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

GLOBAL_BATCH = 64
RANKS, RANKS_PER_NODE = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))


class Model(lightning.LightningModule):
    """A regression."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def training_step(self, batch, _index):
        """Return the loss of one batch."""
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.02)


lightning.seed_everything(0)
inputs = torch.randn(GLOBAL_BATCH, 8)  # a step is the whole of the data, so that who gets which sample does not matter
targets = inputs.square().sum(dim=1, keepdim=True)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=GLOBAL_BATCH // RANKS, shuffle=True)
model = Model()
trainer = lightning.Trainer(
    devices=RANKS_PER_NODE,
    num_nodes=RANKS // RANKS_PER_NODE,
    max_epochs=10,
    log_every_n_steps=1,
    enable_progress_bar=False,
)
trainer.fit(model, loader)

checksum = sum(weights.detach().abs().sum().item() for weights in model.parameters())
rank, local_rank = trainer.global_rank, trainer.local_rank
print(f"rank {rank} ({local_rank}) of {trainer.world_size}, weights {checksum:.6f};", flush=True)
