"""A module of the user's own with a syntax error, which all ranks import."""

import sys
from pathlib import Path

import startup

Path("models").mkdir(exist_ok=True)
Path("models/mixture.py").write_text("def route(x, experts:\n    return x\n")
sys.path.insert(0, "models")
import mixture
