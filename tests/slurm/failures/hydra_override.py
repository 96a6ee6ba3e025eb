"""What hydra prints for an override that the configuration does not have (hydra/_internal/utils.py, 2026-11-27)."""

import sys

import startup

WORDS = """\
Could not override 'optimizer.lrr'.
To append to your config use +optimizer.lrr=0.1
Key 'lrr' is not in struct
    full_key: optimizer.lrr
    object_type=dict

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."""
print(WORDS, file=sys.stderr)
sys.exit(1)
