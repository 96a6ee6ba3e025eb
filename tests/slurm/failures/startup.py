"""Prints what the libraries of a training print at their start although all is well. Each program imports it."""

import os
import re
import sys
from pathlib import Path

paragraphs = Path(__file__).with_name("noise.txt").read_text().split("\n\n")[1:]
for number, paragraph in enumerate(paragraphs):
    source, _, message = paragraph.strip("\n").partition("\n")
    if not source.startswith("# slurm |"):  # what srun prints, and no library
        message = re.sub(r"\[rank\d+\]:", f"[rank{os.environ['RANK']}]:", message)
        print(message, file=sys.stdout if number % 3 == 2 else sys.stderr, flush=True)
