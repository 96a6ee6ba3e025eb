"""Rank 3: rich draws a box around the traceback."""

import os
import time

import rich.traceback
import startup

rich.traceback.install()
config = {"model": {"width": 512}}
time.sleep(1)
if os.environ["RANK"] == "3":
    print(config["model"]["depth"])
time.sleep(600)
