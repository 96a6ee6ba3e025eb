"""Apptainer and podman of the test cluster: are they the real ones, and do they work as on a cluster?"""

import sys
from pathlib import Path

import pytest
from container_root import offer_image, python_folders, write_storage_conf, write_wheel

pytestmark = pytest.mark.drill

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TWO_NODES = ["--nodes=2", "--nodelist=node1,node2"]
VENDOR = "nvcr.io/nvidia/pytorch:test"
# the folders of this Python, with torch
BINDS = [f"--bind={path}" for path in (sys.prefix, *python_folders())]
ALL_REDUCE = """
import os, socket, sys, torch
import torch.distributed as dist
rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", init_method="tcp://node1:29511", rank=rank, world_size=size)
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
line = f"{socket.gethostname()} {rank} {total.item()} {os.environ['APPTAINER_CONTAINER']}\\n"
os.write(1, line.encode())
dist.destroy_process_group()
"""
# Waits until so many tasks of this job have come on the node: their containers are there at the same time.
MEET = (
    "here=/dev/shm/$SLURM_JOB_ID; mkdir -p $here; touch $here/$SLURM_PROCID\n"
    "until [[ $(ls $here | wc -l) == %d ]]; do sleep 0.05; done"
)


@pytest.fixture
def storage(containers, archive, tmp_path):
    """The environment of a user whose images are in the node's memory."""
    offer_image(containers, archive, "localhost/base:1", VENDOR)
    return {"CONTAINERS_STORAGE_CONF": str(write_storage_conf(tmp_path / "storage.conf", "/dev/shm/root"))}


def build(cluster, context, env, *options, image="demo"):
    return cluster.run(
        *["srun", "--nodelist=node1", "podman", "build", *options, "-t", image, "-f", context / "Dockerfile", context],
        env=env,
        check=False,
    )


def test_two_tasks_on_each_of_two_nodes_share_shm_and_see_binds(containers, sif, tmp_path):
    (tmp_path / "at-node").write_text("bound\n")
    script = f'{MEET % 2}\necho "$(hostname) $(ls "$here" | xargs) $(cat /no/such/dir/at-node)"'
    words = ["apptainer", "exec", "--nv", f"--bind={tmp_path}:/no/such/dir", f"--bind={REPOSITORY}", sif]
    done = containers.run("srun", *TWO_NODES, "--ntasks-per-node=2", *words, "bash", "-c", script)
    assert sorted(done.stdout.splitlines()) == ["node1 0 1 bound"] * 2 + ["node2 2 3 bound"] * 2
    assert "FATAL" not in done.stderr


def test_more_containers_than_loop_devices_at_first(containers, sif):
    words = ["singularity", "exec", sif, "bash", "-c", f"{MEET % 8}\necho met"]
    assert containers.run("srun", *TWO_NODES, "--ntasks-per-node=8", "-K", *words).stdout == "met\n" * 16


def test_an_error_inside_is_an_error_outside(containers, sif):
    assert containers.run("srun", "-N1", "apptainer", "exec", sif, "bash", "-c", "exit 7", check=False).returncode == 7


def test_torch_of_this_machine_on_two_nodes(containers, sif, tmp_path):
    program = tmp_path / "all_reduce.py"
    program.write_text(ALL_REDUCE)
    words = ["apptainer", "exec", "--nv", *BINDS, f"--bind={tmp_path}", sif, sys.executable, program]
    done = containers.run("srun", *TWO_NODES, "--ntasks-per-node=2", *words)
    assert sorted(done.stdout.splitlines()) == [f"node{1 + rank // 2} {rank} 10.0 {sif}" for rank in range(4)]


@pytest.mark.parametrize("place", ["/dev/shm/images", "tmp_path"])
@pytest.mark.parametrize("driver", ["overlay", pytest.param("vfs", marks=pytest.mark.drill)])
def test_podman_build_with_run_steps(containers, archive, storage, tmp_path, driver, place):
    place = tmp_path / "images" if place == "tmp_path" else f"{place}-{driver}"
    write_storage_conf(Path(storage["CONTAINERS_STORAGE_CONF"]), place, driver)
    if driver == "vfs":  # offer_image is for overlay alone
        containers.run("srun", "--nodelist=node1", "podman", "load", "--input", archive, env=storage)
    context = tmp_path / "context"
    context.mkdir()
    write_wheel(context / "wheels")
    lines = ["FROM localhost/base:1", "COPY wheels /wheels", "RUN pip install --no-index --find-links=/wheels answer"]
    lines += ["RUN python3 -c 'import answer; print(answer.ANSWER)' && grep node1 /etc/hosts"]
    (context / "Dockerfile").write_text("\n".join(lines))
    done = build(containers, context, storage)
    assert done.returncode == 0 and "\n42\n" in done.stdout, done.stdout + done.stderr


def test_podman_needs_a_place_for_its_images(containers, storage, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM localhost/base:1\n")
    done = build(containers, tmp_path, {})
    assert done.returncode and "set-CONTAINERS_STORAGE_CONF" in done.stderr


def test_podman_tells_read_only_images_from_its_own(containers, storage, tmp_path):
    """What slurm/build_container.sh asks podman-hpc, whose migrated images are those of an additional store."""
    (tmp_path / "Dockerfile").write_text(f"FROM {VENDOR}\nLABEL mine=yes\n")
    done = build(containers, tmp_path, storage, image="localhost/own:1")
    assert done.returncode == 0, done.stderr

    def images(*words):
        return containers.run("srun", "--nodelist=node1", "podman", "images", *words, env=storage).stdout.split()

    def migrated(name):
        return images("--filter", "readonly=true", "--filter", f"reference={name}", "--quiet")

    assert len(images("--quiet", "localhost/own:1")) == len(migrated(VENDOR)) == 1
    assert not migrated("localhost/own:1") and not migrated("localhost/none:1")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--volume=/no/such:/x"], 125, "Error: statfs /no/such: no such file or directory"),
        (["--volume=/usr:/x:readonly"], 125, 'Error: invalid option type "readonly"'),
        (["--workdir=/no/such"], 126, 'Error: workdir "/no/such" does not exist on container'),
    ],
)
def test_podman_run_refuses_as_its_stand_in_does(containers, storage, options, code, said):
    """The same messages as in test_podman_hpc_refuses. They come before crun, which refuses some machines."""
    words = ["podman", "run", "--rm", "--network=host", "--cgroups=disabled", *options, "localhost/base:1", "true"]
    done = containers.run("srun", "--nodelist=node1", *words, env=storage, check=False)
    assert said in done.stderr and done.returncode == code, done.stderr


def test_a_failing_step_fails_the_build(containers, storage, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {VENDOR}\nRUN echo before && exit 9\n")
    done = build(containers, tmp_path, storage)
    assert done.returncode == 9 and "before" in done.stdout, done.stdout + done.stderr


@pytest.mark.drill
def test_from_dockerfile_to_apptainer_image(containers, storage, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {VENDOR}\nENV ANSWER=42\nRUN echo made >/made\n")
    lines = [
        f"podman build --network=host -t demo -f {tmp_path}/Dockerfile {tmp_path}",
        f"podman save --format docker-archive -o {tmp_path}/demo.tar demo",
        f"apptainer build {tmp_path}/demo.sif docker-archive://{tmp_path}/demo.tar",
    ]
    containers.run("srun", "--nodelist=node1", "bash", "-ec", "\n".join(lines), env=storage)
    shown = containers.run(
        "srun", *TWO_NODES, "apptainer", "exec", tmp_path / "demo.sif", "bash", "-c", "cat /made; env"
    )
    assert shown.stdout.count("made\n") == shown.stdout.count("ANSWER=42\n") == 2
