#!/usr/bin/env bash
#? include "env." ~ site_facts(cookiecutter.site).kind ~ ".sh"
