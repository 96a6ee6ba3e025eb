"""A job to watch: rank 0 prints and writes metrics.jsonl, rank 1 sleeps, the others compute; for --seconds."""

import json
import os
import sys
import time

rank = int(os.environ["RANK"])
end = time.time() + float(sys.argv[1])
print(f"rank {rank} begins", flush=True)
if rank == 1:
    time.sleep(max(0, end - time.time()))
elif rank == 0:
    with open("metrics.jsonl", "w") as file:
        step = 0
        while time.time() < end:
            step += 1
            row = {"step": step, "loss": 5 - step / 1000, "tokens_per_second": 1234.5, "time": time.time()}
            print(json.dumps({**row, "steps": int(sys.argv[2])}), file=file, flush=True)
            print(f"step {step}", flush=True)
            sum(range(1_000_000))
            time.sleep(0.1)
while time.time() < end:
    sum(range(1_000_000))
