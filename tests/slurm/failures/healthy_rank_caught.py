"""Rank 0 goes on after an optional import that failed, and shows its traceback. Later rank 2 ends with 3."""

import os
import sys
import time
import traceback

import startup

if os.environ["RANK"] == "0":
    try:
        import flash_attn_3_interface
    except ImportError:
        traceback.print_exc()
        print("flash attention 3 is not installed, falling back to sdpa", file=sys.stderr, flush=True)
time.sleep(1)
if os.environ["RANK"] == "2":
    print("validation set is empty", file=sys.stderr)
    sys.exit(3)
time.sleep(600)
