"""All ranks caught an exception at their start and showed it; later rank 3 ends with 1, which it explains."""

import logging
import os
import sys
import time

import startup

try:
    import transformer_engine_of_ours
except ImportError:
    logging.exception("no transformer engine, using torch's layers")
for step in range(8):
    print(f"step {step}: loss {10 / (step + 1):.3f}", flush=True)
    time.sleep(0.1)
if os.environ["RANK"] == "3":
    print("evaluation: 0 of 512 answers can be parsed, giving up", file=sys.stderr)
    sys.exit(1)
time.sleep(600)
