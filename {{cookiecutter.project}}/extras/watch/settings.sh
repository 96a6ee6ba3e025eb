#!/usr/bin/env bash
# Seconds between two samples of GPU use on each node of a job, which the job's last line sums up.
# 0: none.
MEASURE_EVERY="${MEASURE_EVERY:-30}"
