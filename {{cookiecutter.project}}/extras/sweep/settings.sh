#!/usr/bin/env bash
# This extra has no settings.
