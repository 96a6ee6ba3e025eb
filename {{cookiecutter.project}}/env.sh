#!/usr/bin/env bash
#? include "parts/env." ~ site_facts(cookiecutter.site).kind ~ ".sh"
