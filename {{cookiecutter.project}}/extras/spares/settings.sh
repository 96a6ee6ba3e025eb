#!/usr/bin/env bash
# Number of spare nodes in a job, which replace nodes that are unfit or die. 0: none.
SPARES="${SPARES:-0}"
# Fewest nodes to run on, if more nodes are lost than spares are left. Empty: --nodes of the job.
MIN_NODES="${MIN_NODES:-}"
# How often a job with SPARES or MIN_NODES restarts its ranks on the nodes that are left.
MAX_RESTARTS="${MAX_RESTARTS:-5}"
# For how many days slurm/submit_multinode.sh avoids a node in which a job found a fault
# (extras/spares/bad_nodes.sh lists them). 0: it avoids none.
BAD_NODE_DAYS="${BAD_NODE_DAYS:-2}"
