"""Rank 3 logs an error, as many programs do, and ends with 2."""

import logging
import os
import sys
import time

import startup

logging.basicConfig(format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", level=logging.INFO)
log = logging.getLogger("pretrain")
log.info("rank %s of %s", os.environ["RANK"], os.environ["WORLD_SIZE"])
time.sleep(1)
if os.environ["RANK"] == "3":
    log.error("optimizer.betas: expected two numbers, got 0.9")
    sys.exit(2)
time.sleep(600)
