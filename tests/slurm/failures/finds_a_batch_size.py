"""All ranks try batch sizes until one fits the GPU, as accelerate's find_executable_batch_size; rank 2 fails later."""

import os
import time

import startup

for size in (512, 256):
    print(f"CUDA out of memory, trying batch size {size // 2}" if size == 512 else "batch size 256 fits", flush=True)
state = {"model": 1, "optimizer": 2}
time.sleep(1)
if os.environ["RANK"] == "2":
    print(state["lr_scheduler"])
time.sleep(600)
