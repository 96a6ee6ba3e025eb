"""Container runtimes and launchers: what each one is, which kind of site can have it, which image it needs."""

from __future__ import annotations

import re

# The container image that a runtime needs: None, or a pattern and what to say to who misses it. The group of a pattern
# is a name in a registry, from which the image is made. An image that the pattern matches without this group is a file
# that is ready.
_NAME = r"[\w.-]+(?::\d+)?(?:/[\w.-]+)+:[\w.-]+|[\w.-]+:[\w.-]+"
# enroot before 4.0.1 takes REGISTRY/NAME for a name of Docker Hub (NVIDIA/enroot f29a45c, 2025-08-27), hence the #.
_PATH = r"[\w-]+(?:/[\w.-]+)*:[\w.-]+"
_SQUASHED = (rf"/.*\.sqsh|((?:[\w.:-]+#)?{_PATH})", "the absolute path of a .sqsh file, or REGISTRY#NAME:TAG")
RUNTIMES = {
    "none": None,
    "venv": None,
    "apptainer": (rf"/.*\.sif|docker://({_NAME})", "the absolute path of a .sif file, or docker://REGISTRY/NAME:TAG"),
    "pyxis": _SQUASHED,
    "enroot": _SQUASHED,
    "edf": _SQUASHED,
    "shifter": (rf"({_NAME})", "NAME:TAG"),
    "podman-hpc": (rf"({_NAME})", "REGISTRY/NAME:TAG"),
    "pod": (rf"({_NAME})", "REGISTRY/NAME:TAG"),
}
VENDOR_IMAGES = {
    "nvidia": "nvcr.io/nvidia/pytorch:26.01-py3",
    "amd": "docker.io/rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0",
}
# These live in options of srun, so mpirun, whose tasks are no steps of their own, cannot start them.
IN_SRUN = ("pyxis", "edf")
# These pull an image themselves for a job, and keep it where all nodes see it:
# https://docs.cscs.ch/software/container-engine/run/ (2026-08-20).
PULLING = ("edf",)
MPI = {"mpirun", "mpirun-ranks"}
LAUNCHERS = ("torchrun", "srun", "spawn", "mpirun", "mpirun-ranks")
LAUNCHER_ROWS = {  # of a table: what is started on the nodes, what starts the ranks, when to pick it
    "torchrun": "srun: one torchrun per node | torchrun | by default; laptops and Kubernetes use it, too",
    "srun": "srun: every rank | srun | to bind or profile ranks with srun's options: it starts each rank itself",
    "spawn": "srun: one Python per node | that Python, by fork | for a quick start: it imports torch once per node",
    "mpirun": "mpirun: one torchrun per node | torchrun | where a tool wraps mpirun",
    "mpirun-ranks": "mpirun: every rank | mpirun | for Horovod and mpi4py",
}
# What each kind of site can have; a site file lists which of these it has.
KINDS = {
    "local": {"runtimes": ("none", "venv"), "launchers": ("torchrun",), "name": "no scheduler"},
    "slurm": {"runtimes": tuple(name for name in RUNTIMES if name != "pod"), "launchers": LAUNCHERS, "name": "Slurm"},
    "runai": {"runtimes": ("pod",), "launchers": ("torchrun",), "name": "Run:ai"},
}


def image_fits(runtime: str, image: str) -> bool:
    """Return whether a runtime can take an image of this name."""
    return bool(RUNTIMES[runtime] and re.fullmatch(RUNTIMES[runtime][0], image))


def other_spelling(runtime: str, image: str) -> str:
    """Return the name of an image as the runtime writes it, if it was written as another does; '' if it is no name."""
    name = image.removeprefix("docker://").replace("#", "/", 1)
    host, slash, rest = name.partition("/")
    registry = slash and re.search(r"[.:]", host)
    spellings = (name, f"docker://{name}", f"{host}#{rest}" if registry else name)
    return next((spelling for spelling in spellings if spelling != image and image_fits(runtime, spelling)), "")


def image_rule(runtime: str) -> str:
    """Return what to give as the image of a runtime."""
    return f"give {RUNTIMES[runtime][1]}" if RUNTIMES[runtime] else "this runtime is no container"
