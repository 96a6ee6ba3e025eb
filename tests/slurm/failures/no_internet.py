"""Rank 2 downloads from a host that its node cannot find."""

import os
import time
import urllib.request

import startup

if os.environ["RANK"] == "2":
    urllib.request.urlopen("https://huggingface.co/gpt2/resolve/main/config.json")
time.sleep(600)
