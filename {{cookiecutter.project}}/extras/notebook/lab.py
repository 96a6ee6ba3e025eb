"""Runs JupyterLab on a UNIX socket that no other user can open. extras/notebook/serve.sh starts it on a compute node.

    python extras/notebook/lab.py FOLDER ROOT

FOLDER gets the files jupyter.sock and token, and has to be readable by you alone. ROOT is the folder that the notebook
shows. JupyterLab does not listen on a network port, to which other users of the node could connect. Its kernels use
sockets in a private folder, too. ipykernel opens one port on 127.0.0.1, which receives the output of the kernel's child
processes.
"""

import os
import secrets
import sys
import tempfile


def main() -> None:
    """Run JupyterLab until the job ends."""
    if len(sys.argv) != 3:
        sys.stderr.write("extras/notebook/lab.py: call bash extras/notebook/notebook.sh, whose job starts this file\n")
        sys.exit(2)
    folder, root = sys.argv[1:]
    try:
        from jupyterlab.labapp import LabApp
    except ImportError:
        sys.exit(f"{sys.executable} has no JupyterLab: add a line jupyterlab to the requirements, and build again")
    os.chdir(folder)  # so that the socket's name is short: the kernel takes at most 107 bytes
    token = secrets.token_urlsafe(32)
    with open(os.open("token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(token)
    os.environ["JUPYTER_TOKEN"] = token  # ps shows arguments to other users, but not the environment
    os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="jupyter-", dir="/tmp")  # for the kernels' sockets
    sys.argv[1:] = []
    LabApp.launch_instance(
        [
            "--ServerApp.sock=jupyter.sock",
            "--ServerApp.sock_mode=0600",
            "--ServerApp.port=8888",  # beside another port, as in settings of yours, it refuses a socket
            f"--ServerApp.root_dir={root}",
            "--ServerApp.open_browser=False",
            "--ServerApp.allow_root=True",  # in some containers your user is root
            "--KernelManager.transport=ipc",
        ]
    )


if __name__ == "__main__":
    main()
