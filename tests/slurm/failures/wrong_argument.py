"""All ranks get an argument that their argparse does not know."""

import argparse

import startup

parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, default=3e-4)
parser.add_argument("--max-steps", type=int, default=1000)
parser.parse_args(["--max-steps", "ten"])
