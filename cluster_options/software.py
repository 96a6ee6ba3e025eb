"""The software of a project: modules, packages, images, volumes, and the lines that load or enter them."""

from __future__ import annotations

import re
import shlex
import textwrap

from .defaults import CONTAINER_DEFAULTS
from .runtimes import IN_SRUN, PULLING, RUNTIMES
from .sbatch import interactive_answers, node_facts, resources
from .sites import site_facts

# What pip takes. pip's metadata of 2.11.0 to 2.13.0, for x86-64 and Arm (2026-11-26); pytorch/pytorch issues 178665,
# 190355 and 190385 for the CUDA of each version (2026-03-27 and 2026-07-17).
TORCH = "2.13.0"
TORCH_OF_PYPI = (
    "torch 2.11 to 2.13 of PyPI, for x86-64 and Arm, is for CUDA 13.0 and needs a driver of 580 or newer; for an older "
    "driver, set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu126, which has torch up to 2.14"
)


def modules_of(answers) -> dict:
    """Return the modules of each runtime that RUNTIME may be set to; if all want the same, these under ''."""
    facts = site_facts(answers["site"])
    names = dict.fromkeys([answers["runtime"], *(name for name in ("venv", "none") if name in facts["runtimes"])])
    found = {name: facts["modules"] + facts["containers"][name]["modules"] for name in names}
    first = found[answers["runtime"]]
    return {"": first} if all(modules == first for modules in found.values()) else found


def packages_from(answers) -> str:
    """Return where slurm/build_venv.sh installs packages from.

    wheelhouse    wheels that the site keeps on its file system
    folder        the folder wheels/ of the project, which the user fills, as compute nodes reach no index
    index         a package index
    """
    facts = site_facts(answers["site"])
    venv = facts["containers"].get("venv", CONTAINER_DEFAULTS)
    if venv["wheelhouse"]:
        return "wheelhouse"
    return "folder" if facts["internet"] is False and not venv["on_login_node"] else "index"


def builds_on_login_node(answers) -> bool:
    """Return whether slurm/build_venv.sh makes the environment where it is called, and not in a job."""
    return site_facts(answers["site"])["containers"].get("venv", CONTAINER_DEFAULTS)["on_login_node"]


def torch_pin(answers) -> list[str]:
    """Return the lines of requirements.txt that choose torch: the reason, and the site's version or PyPI's."""
    facts = site_facts(answers["site"])
    of_pypi = {"version": TORCH, "why": TORCH_OF_PYPI if facts["node"]["gpu_vendor"] == "nvidia" else ""}
    pin = facts["containers"].get("venv", CONTAINER_DEFAULTS)["torch"] or of_pypi
    return [f"# {line}" for line in textwrap.wrap(pin["why"], 98)] + [f"torch=={pin['version']}"]


def add_package(answers, package, container_page) -> str:
    """Return a sentence that says how a package gets into the software of a written project for Slurm.

    container_page: the link to slurm/docs/container.md from the page that has the sentence.
    """
    if image_source(answers):
        again = f"build the image again, as [the page on it]({container_page}) says"
        return f"Add a line `{package}` to `container/requirements.txt`, and {again}."
    if answers["runtime"] == "venv":
        wheels = "fill `wheels/` again, " if packages_from(answers) == "folder" else ""
        again = f"{wheels}remove `.venv`, and run `bash slurm/build_venv.sh`"
        return f"Add a line `{package}` to `requirements.txt`, {again}. In an environment of your own, use its `pip`."
    if answers["runtime"] == "none":
        return f"The Python that `MODULES` and `PYTHON` in `env.sh` choose needs the package `{package}`."
    return f"The image that `IMAGE` in `env.sh` names needs the package `{package}`."


def interactive_line(answers) -> str:
    """Return the one line that opens a shell on a compute node, in the chosen software; for the project's folder."""
    facts, job, runtime = site_facts(answers["site"]), interactive_answers(answers), answers["runtime"]
    here, container = '"$PWD"', facts["containers"][runtime]
    image, ending = answers["image"], "sif" if runtime == "apptainer" else "sqsh"
    if image_source(answers) and not pulls_image(answers) and runtime in ("apptainer", "enroot", *IN_SRUN):
        image = f'"$PWD/container/{answers["project"]}.{ending}"'
    if runtime == "podman-hpc":
        image = f"localhost/{image_name(answers)}:latest"
    enter = {  # what comes between srun and the shell
        "apptainer": ["singularity exec", gpu_option(answers), *container["options"], image, *container["entry"]],
        "pyxis": [
            f"--container-image={image} --container-mounts={here} --container-workdir={here}",
            *container["options"],
        ],
        "edf": ['"${CONTAINER_SRUN_ARGS[@]}"'],
        "enroot": [f"bash container/start.sh {image} {here} --"],
        "podman-hpc": [f"bash container/start.sh {image} {here} --"],
        "shifter": [f"shifter --image=docker:{image}", *container["options"]],
        "none": [],
        "venv": [],
        "pod": [],  # a run without hooks writes the pages for Slurm in a Run:ai project, too
    }[runtime]
    modules = " ".join([*facts["modules"], *container["modules"]])
    lines = {place: [entry["line"] for entry in entries] for place, entries in facts["module_lines"].items()}
    load = [*lines["before"], f"module load {modules}", *lines["after"]] if modules else []
    before = "; ".join([*load, f"export PROJECT_DIR={here}"])
    before += " ENROOT_LOGIN_SHELL=no" * (runtime == "pyxis")
    before += "".join(f"; unset {variable['name']}" for variable in container["unset"])
    options = [shlex.quote(option) for option, _ in resources(job)]
    srun = [option["option"] for option in facts["srun"] if option["tasks"] != "rank"]
    shell = "bash" if enter else "bash --rcfile slurm/interactive.rc"
    words = ["salloc --nodes=1 --ntasks=1", *options, "srun --pty", *srun, *enter, shell]
    line = " ".join(filter(None, words))
    if runtime == "edf":  # set_up_software writes the file that describes the container, and loads the modules
        line = f"source env.sh && source launch/software.sh && set_up_software {here} && exec {line}"
        return f"export PROJECT_DIR={here}; bash -c {shlex.quote(line)}"
    return f"{before}; {line}"


def gpu_option(answers) -> str:
    """Return the option of apptainer that brings the GPUs into the container; '' for none."""
    own = site_facts(answers["site"])["containers"].get("apptainer", CONTAINER_DEFAULTS)["gpu_option"]
    if int(answers["gpus_per_node"]) == 0:
        return ""
    return own if own is not None else "--rocm" if node_facts(answers)["gpu_vendor"] == "amd" else "--nv"


def pip_index(answers) -> str:
    """Return the option of pip that names the site's further index, with a space behind it; '' for none."""
    variables = site_facts(answers["site"])["environment"]
    return "".join(f"--extra-index-url={one['value']} " for one in variables if one["name"] == "PIP_EXTRA_INDEX_URL")


def pod_volumes(answers) -> list[str]:
    """Return the volumes that pods mount, as CLAIM:/FOLDER, with what the account says of them filled in."""
    facts = site_facts(answers["site"])
    found = re.fullmatch(facts["account"].get("like", ""), answers["account"])
    named = found.groupdict() if found else {}
    volumes = (f"{volume['claim']}:{volume['path']}" for volume in facts["pods"]["volumes"])
    return [re.sub(r"{(.*?)}", lambda group: named[group[1]], volume) for volume in volumes]


def image_source(answers) -> str:
    """Return REGISTRY/NAME:TAG, what the image is built from; '' for a ready file and where there is no container."""
    found = RUNTIMES[answers["runtime"]] and re.fullmatch(RUNTIMES[answers["runtime"]][0], answers["image"])
    name = (found[1] or "").replace("#", "/") if found and found.groups() else ""
    registry, slash, _ = name.partition("/")
    if name and not (slash and re.search(r"[.:]", registry)):  # what Docker alone would look up in its own registry
        name = f"docker.io/{name}" if slash else f"docker.io/library/{name}"
    return name


def pulls_image(answers) -> bool:
    """Return whether the runtime itself pulls the image for a job, by the name that the registry has for it."""
    return answers["runtime"] in PULLING and image_source(answers) != ""


def builds_image(answers) -> bool:
    """Return whether the first job needs an image that the project makes; not where the site has one, or pulls it."""
    own = site_facts(answers["site"])["containers"].get(answers["runtime"], CONTAINER_DEFAULTS)["find_image"]
    return image_source(answers) != "" and not pulls_image(answers) and not own


def pull_command(answers) -> str:
    """Return the line that gets Apptainer's image where login nodes have internet and compute nodes have none, or ''.

    The user types it on a login node, in the project's folder.
    """
    facts, source = site_facts(answers["site"]), image_source(answers)
    if not source or facts["internet"] is not False or not facts["login_internet"]:
        return ""
    pull = f"singularity pull container/{answers['project']}.sif docker://{source}"
    return f"{facts['containers']['apptainer']['build_with'].replace('ACCOUNT', answers['account'])} {pull}".lstrip()


def image_name(answers) -> str:
    """Return the project's name as it may stand in the name of an image: small letters, digits, single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", answers["project"].lower()).strip("-")


def module_lines(answers, place: str, caller, indent="") -> str:
    """Return the site's lines before or after `module load`, for a call block."""
    written = []
    for entry in site_facts(answers["site"])["module_lines"][place]:
        if re.search(r"(^|\s)source ", entry["line"]):
            written.append("# shellcheck source=/dev/null")
        written.append(f"{entry['line']} # {entry['why']}")
    return caller() + "".join(f"{indent}{line}\n" for line in written)


def overridable(variable: dict) -> str:
    """Return the shell text that keeps an environment variable as the user set it, or else takes the site's value."""
    if variable.get("force") or "SLURM_JOB_ID" in variable["value"]:  # another job's is never right
        return variable["value"]
    return f"${{{variable['name']}:-{variable['value']}}}"


def in_quotes(command: str) -> str:
    """Return a command as it stands inside double quotes of a shell."""
    return re.sub(r'(["`\\]|\$(?=\())', r"\\\1", command)
