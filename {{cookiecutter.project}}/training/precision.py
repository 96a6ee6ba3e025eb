"""Matrix products in bfloat16, TF32, float32 or float64, and how fast a GPU can be at them."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from distributed import fail

# Largest rate of dense bfloat16 products [FLOP/s] by a part of the GPU's name. The first that fits counts. From the
# makers' data sheets as torchtitan/tools/utils.py lists them (https://github.com/pytorch/torchtitan, 2026-11-21).
PEAK_FLOPS = (
    (" MIG", math.inf),  # a part of a GPU: not known
    ("A100", 312e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H200 NVL", math.inf),  # not in that list, like GB200
    ("GB200", math.inf),
    ("H200", 989e12),  # and GH200
    ("B200", 2250e12),
    ("MI250X", 191.5e12),  # torch sees each half as a GPU
    ("MI300X", 1300e12),
)


class Precision(NamedTuple):
    """How the model computes."""

    name: str  # bfloat16, tf32, float32 or float64
    weights_dtype: torch.dtype  # of the parameters, which the optimizer updates
    autocast: AbstractContextManager  # in which the loss is computed


def choose_precision(name: str | None, device: torch.device) -> Precision:
    """Return the precision of that name. The default is bfloat16 where the GPU supports it, else float32."""
    has_bfloat16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    name = name or ("bfloat16" if has_bfloat16 else "float32")
    if name == "tf32" and (not has_bfloat16 or torch.version.hip):
        fail("--dtype tf32 is for NVIDIA's GPUs since Ampere: choose float32 or bfloat16")
    # Set here, and not left to defaults. That of cuDNN is TF32. Some containers set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1,
    # which makes TF32 the default of matrix products too.
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    autocast = torch.autocast(device.type, torch.bfloat16) if name == "bfloat16" else nullcontext()
    return Precision(name, torch.float64 if name == "float64" else torch.float32, autocast)


def peak_flops(precision: Precision, device: torch.device) -> float:
    """Return the largest rate of products [FLOP/s] that the maker gives for this device; infinite if not known."""
    if device.type != "cuda" or precision.name != "bfloat16":
        return math.inf
    words = torch.cuda.get_device_name(device).replace("-", " ") + " "
    for name, rate in PEAK_FLOPS:
        if f"{name} " in words:  # and not A1000
            return rate
    return math.inf
