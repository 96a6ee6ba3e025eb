"""A small GPT over bytes: the model that the training programs train. To train yours, replace this file.

The programs ask for this:

- `Config` is a dataclass of numbers, texts and truth values. Its fields become flags: a_b is `--a-b`, or `--no-a-b` if
  it is a truth value. A checkpoint of other values is refused.
- `GPT(config)` is called with the tensors of a batch, and returns its loss: a scalar, the mean over the samples. Each
  sample has the same weight, or the losses depend on how the batch is divided: with ignore_index, say, divide the sum
  by the number of all targets.
- `GPT.blocks` are its layers. train_fsdp.py gathers and frees them one by one.

`GPT.logits(tokens)` is optional: sample.py needs it, which prints what the model continues a text with.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Config:
    """Shape of the model; the default has 842,496 parameters, small enough for two CPU cores."""

    vocabulary: int = 256  # every byte is a token: no tokenizer to download, any text fits
    context: int = 128  # tokens that the model sees at once
    layers: int = 4
    heads: int = 4
    width: int = 128  # of the residual stream

    def __post_init__(self) -> None:
        """Raise ValueError, in words for the user, where the numbers do not fit together."""
        if self.vocabulary < 256:
            raise ValueError(f"--vocabulary {self.vocabulary} is too small: data.py has 256 tokens, one for each byte")
        if min(self.context, self.layers, self.heads, self.width) < 1 or self.width % self.heads:
            raise ValueError(f"--width has to be a multiple of --heads, and --context and --layers at least 1: {self}")


class Block(nn.Module):
    """One transformer layer: attention, then an MLP, each added to its own input."""

    def __init__(self, config: Config) -> None:
        """Make the layers; weights are set by GPT."""
        super().__init__()
        self.heads = config.heads
        self.norm_attention = nn.LayerNorm(config.width)
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.attention_out = nn.Linear(config.width, config.width)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.mlp_in = nn.Linear(config.width, 4 * config.width)
        self.mlp_out = nn.Linear(4 * config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, time, width] to the same shape; position t sees no position after t."""
        # Each of them is [batch, heads, time, width / heads].
        q, k, v = self.query_key_value(self.norm_attention(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.norm_mlp(x))))


class GPT(nn.Module):
    """Decoder-only transformer, norm before each sub-layer, output weights tied to the token embedding.

    There is no dropout and no batch statistic, so the loss depends on nothing but weights and batch: this is what lets
    N ranks be compared with one, digit by digit.
    """

    def __init__(self, config: Config) -> None:
        """Draw the initial weights from torch's global generator: seed it first, equally on all ranks."""
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif name.endswith(("attention_out.weight", "mlp_out.weight")):
                # The residual stream is a sum of 2 x layers terms: smaller ones keep the sum at its size.
                nn.init.normal_(weight, std=0.02 / (2 * config.layers) ** 0.5)
            elif weight.dim() == 2:  # a gain of LayerNorm stays 1
                nn.init.normal_(weight, std=0.02)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens [batch, time] (int64, time <= context) to the logits of the next one [batch, time, vocabulary]."""
        x = self.token(tokens) + self.position.weight[: tokens.size(1)]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss [nats per token]; both arguments are int64 [batch, time]."""
        # The loss is part of the model so that train_single.py and train_ddp.py compile it, too: with a large
        # vocabulary it is much of the work.
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())
