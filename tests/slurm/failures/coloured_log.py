"""Rank 3 logs in colours, with a title for the terminal's window, and ends with 5."""

import os
import sys
import time

import startup

RED, BOLD, OFF = "\033[31m", "\033[1m", "\033[0m"
print(f"\033]0;training\007{BOLD}INFO{OFF} run \033[34mgpt-small\033[0m started", flush=True)
time.sleep(1)
if os.environ["RANK"] == "3":
    print(f"{RED}{BOLD}ERROR{OFF} {RED}gradient norm is not finite{OFF}\033[K", file=sys.stderr)
    sys.exit(5)
time.sleep(600)
