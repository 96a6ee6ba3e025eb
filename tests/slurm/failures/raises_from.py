"""Rank 1: an exception that another one caused."""

import os
import time

import startup


def learning_rate(config):
    try:
        return float(config["lr"])
    except ValueError as error:
        raise RuntimeError("config/base.yaml: lr is no number") from error


time.sleep(1)
if os.environ["RANK"] == "1":
    learning_rate({"lr": "1e-3,"})
time.sleep(600)
