"""Says whether another start of a failed run may succeed. extras/spares/hooks.sh asks that.

    python3 slurm/doctor.py --json JOBID | python3 extras/spares/fault.py

It prints one line:
    node NODE    this node is broken: the next start may succeed on other nodes
    program      the next start would fail, too
    unknown      neither is certain: the next start may succeed

It runs on compute nodes: Python 3.6, standard library only.
"""

import json
import sys

# Causes of slurm/doctor.py that are the fault of the node on which the rank failed. The cause "driver of two versions"
# is not among them: if a container brings a driver library of its own, each node has it. A node that has it without a
# container is found by slurm/preflight.sh.
OF_NODE = {"GPU hardware"}

# Causes that the next start may not meet, and why (for readers; only the names are used). Any cause that is neither
# here nor in OF_NODE would end the next start, too: it is the program's.
MAY_PASS = {
    "driver of two versions": "slurm/preflight.sh may find the node, and leave it out",
    "file system": "the file server may answer again",
    "busy GPU": "the other process may end",
    "compiler cache": "the ranks may not write at the same time again",
    "port": "each start has another port",
    "node failure": "Slurm takes the node out of the job",
    "step launch": "Slurm may take the node out of the job",
    "daemons of mpirun": "prted has another number then, and another folder",
    "mpirun lost a node": "Slurm may take the node out of the job",
    "name or route": "the network may recover",
    "lost another rank": "the network may recover",
    "rendezvous": "a node that started slowly may have read its files",
    "waited in vain": "the rank that hung may have hung because of its node",
    "killed": "another process on the node may have taken the memory",
    "crashed": "a fault of the node's memory crashes a rank, too",
}

# How a run without a known cause ended, if the program ended it: "way" of slurm/doctor.py --json.
BY_PROGRAM = {"error", "exited"}


def fault_of(answer):
    """Return whose fault a failure is, as this program prints it. Argument: the object of slurm/doctor.py --json."""
    causes = {cause["name"] for cause in answer["causes"]}
    if causes & OF_NODE:
        return f"node {answer['host']}" if answer["host"] else "unknown"
    if causes:
        return "unknown" if causes <= MAY_PASS.keys() else "program"
    return "program" if answer["way"] in BY_PROGRAM else "unknown"


def main():
    """Read the answer of the doctor, and print whose fault it is."""
    try:
        answer = json.loads(sys.stdin.read())
    except ValueError:
        print("extras/spares/fault.py: expected the output of slurm/doctor.py --json as its input", file=sys.stderr)
        sys.exit(2)
    print(fault_of(answer))


if __name__ == "__main__":
    main()
