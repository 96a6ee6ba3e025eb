#!/usr/bin/env bash
# This extra has no settings of its own: LAUNCHER=mpirun and LAUNCHER=mpirun-ranks choose it.
