"""Reads what ranks have left in the folder of a run when they failed, as lines like those of extras/hangs/collect.sh.

collectives-rank-R: such lines, which the rank has written itself (python/rank_collectives.py).
nccl-rank-R: what NCCL's flight recorder writes when a collective times out, a pickle.
"""

import glob
import os
import pickle
import re
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
import rank_collectives

FILE = re.compile(r"(collectives|nccl)-rank-(\d+)$")


def left_by_ranks(run, kind="*"):
    """Return the lines of all ranks, those of a rank together. kind: of the files, as nccl; "*" for all."""
    lines_of = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(run), f"{kind}-rank-*"))):  # collectives come before nccl
        match = FILE.search(path)
        if match and os.path.isfile(path):
            rank = int(match.group(2))
            lines = own_lines(path) if match.group(1) == "collectives" else lines_of_nccl(path, rank)
            lines_of[rank] = lines_of.get(rank, []) + lines
    return [line for rank in sorted(lines_of) for line in lines_of[rank]]


def own_lines(path):
    """Return the lines of a rank's own file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:  # its rank has been restarted, and has deleted it
        return []


def lines_of_nccl(path, rank):
    """Return lines for what NCCL's recorder wrote; none if it is torn, as the rank was ended meanwhile."""
    try:
        with open(path, "rb") as file:
            dump = Unpickler(file).load()
        groups = dump.get("pg_config", {})
        ranks_of = {name: [int(rank) for rank in re.findall(r"\d+", groups[name]["ranks"])] for name in groups}
        lines = rank_collectives.lines_of(dump, "nccl", ranks_of)
    except (OSError, pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError, ValueError):
        return []
    facts = rank_collectives.facts(rank, len(ranks_of.get("0", [])) or "", "")  # group 0 has all ranks
    return [facts, *lines, f"{rank_collectives.END} nccl"]


class Unpickler(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries, and nothing that could run a program."""

    def find_class(self, module, name):
        """Refuse all else."""
        raise pickle.UnpicklingError(f"{module}.{name}")
