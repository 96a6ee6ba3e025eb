#!/usr/bin/env bash
#? set slurm = site_facts(cookiecutter.site).kind == "slurm"
# 1: a job runs a copy of the sources as they were when you submitted it.
# 0: it runs the files as they are when it starts.
SNAPSHOT="${SNAPSHOT:-{{ 1 if slurm else 0 }}}"
# How large the sources may be [MB]. Larger ones are refused, as they may have data among them.
SNAPSHOT_LIMIT_MB="${SNAPSHOT_LIMIT_MB:-100}"
