"""Did training runs learn the same? A table of losses and tokens/s, and a verdict.

    python training/compare.py -- --data my.txt           six runs that must be equal, made here, with flags of yours
    python training/compare.py runs/first runs/second     folders that were an --out, also while they grow

The first run is the reference. The same numbers added in another order give another rounding: that much may differ, and
in float64, as in the runs that are made here, it is too little to hide a mistake. Exit code 1: more than that differs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

RUNS = ("single-1", "ddp-2", "ddp-4", "ddp-2-accumulated", "fsdp-2", "fsdp-4")  # program, ranks


def main() -> None:
    """Read the flags; make the runs, print the table, and judge."""
    parser = argparse.ArgumentParser(description="Compare training runs: losses, tokens/s, and whether they are equal.")
    parser.add_argument("runs", nargs="*", type=Path, metavar="FOLDER", help="of a run (default: six runs, made here)")
    parser.add_argument("--tolerance", type=float, default=1e-14, help="of equal losses (default: 1e-14, for float64)")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, flags = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    runs = {folder: read(folder) for folder in args.runs or [make(name, flags) for name in RUNS]}
    reference, differences = next(iter(runs.values())), []
    print("\nlast step         loss  validation loss  tokens/s  differs by  run")
    for folder, run in runs.items():
        both = [(kind, step) for kind in ("loss", "val_loss") for step in run[kind].keys() & reference[kind].keys()]
        pairs = [(run[kind][step], reference[kind][step]) for kind, step in both]
        differences.append(max((0.0 if a == b else abs(a - b) for a, b in pairs), default=math.inf))  # inf - inf is nan
        loss, val_loss, speeds = (list(points.values()) or [math.nan] for points in run.values())
        figures = f"{loss[-1]:14.12f} {val_loss[-1]:16.12f} {statistics.median(speeds):9,.0f} {differences[-1]:11.1e}"
        print(f"{max(run['loss']):9} {figures}  {folder}")
    verdict = "equal" if max(differences) <= args.tolerance else "NOT equal"
    print(f"\n{verdict}: the largest difference is {max(differences):.1e}; allowed is {args.tolerance:g}")
    sys.exit(verdict != "equal")


def make(name: str, flags: list[str]) -> Path:
    """Make one of RUNS, and return its folder; exit if it fails."""
    kind, ranks, *accumulated = name.split("-")
    folder = Path("runs/compare", name)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--"]
    command += [Path(__file__).with_name(f"train_{kind}.py"), "--dtype", "float64", "--steps", "40", "--out", folder]
    command += [*(["--micro-batch", "1"] if accumulated else []), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    print(f"{name} …", flush=True)
    if subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False).returncode:
        sys.exit(2)
    return folder


def read(folder: Path) -> dict[str, dict[int, float]]:
    """Return losses and validation losses [nats per token], and speeds [tokens/s], by step."""
    path, run = folder / "metrics.jsonl", {"loss": {}, "val_loss": {}, "tokens_per_second": {}}
    for line in path.read_text().splitlines() if path.is_file() else []:
        with suppress(ValueError):  # the line that it died in
            row = json.loads(line)
            for kind in run.keys() & row.keys():
                run[kind][row["step"]] = math.inf if row[kind] is None else row[kind]  # null: it was not finite
    if not run["loss"]:
        print(f"compare.py: error: no step in {path}: name folders that were an --out", file=sys.stderr)
        sys.exit(2)
    return run


if __name__ == "__main__":
    main()
