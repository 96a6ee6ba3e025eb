"""Rank 3 gets a signal 9, as from the kernel's out-of-memory killer or an administrator."""

import os
import signal
import time

import startup

print("step 100 loss 2.31", flush=True)
time.sleep(1)
if os.environ["RANK"] == "3":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
