"""Rank 3: an endless recursion, whose traceback Python shortens."""

import os
import time

import startup


def flatten(tree):
    return [flatten(tree)]


time.sleep(1)
if os.environ["RANK"] == "3":
    flatten({})
time.sleep(600)
