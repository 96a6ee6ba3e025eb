"""Rank 2 calls a script that is not executable."""

import os
import subprocess
import time
from pathlib import Path

import startup

if os.environ["RANK"] == "2":
    Path("tokenize.sh").write_text("#!/bin/sh\n")
    subprocess.run(["./tokenize.sh"], check=True)
time.sleep(600)
