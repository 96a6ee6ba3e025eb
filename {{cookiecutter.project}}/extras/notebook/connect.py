"""Connects a socket on this login node to the JupyterLab of a job. extras/notebook/notebook.sh calls it.

    python3 extras/notebook/connect.py JOBID HOST FOLDER

FOLDER: the job's log folder, which has the token. The script prints how to open the notebook, and carries connections
until Ctrl-C or until the job ends. Exit code 1: the job has ended, or its node does not answer.
Python 3.6, standard library only.
"""

import getpass
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import datetime

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # PYTHONSAFEPATH=1 leaves this folder out

from relay import Relay

RELAY = os.path.join(os.path.dirname(os.path.realpath(__file__)), "relay.py")
PATIENCE = 60  # seconds in which relay.py must print its first line


def main():
    """Connect to the node, and again after each cut."""
    if len(sys.argv) != 4:
        sys.stderr.write("extras/notebook/connect.py: call bash extras/notebook/notebook.sh JOBID instead\n")
        sys.exit(2)
    job, host, folder = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    path, identity = "", None
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            path = listen(listener, job)
            identity = identity_of(path)
            connection = Connection(job, host, folder, listener)
            print(f"job {job} runs on {host}; JupyterLab starts there, which may take a minute", flush=True)
            connection.run(lambda: print(instructions(job, host, folder, path), flush=True))
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"\nthe notebook goes on: bash extras/notebook/notebook.sh {job} connects again, scancel {job} ends it")
        sys.exit(130)
    finally:
        if identity and identity_of(path) == identity:  # a later call of the script may have replaced the socket
            os.unlink(path)


def identity_of(path):
    """Return a number that no other file has; None if there is no such file."""
    with suppress(OSError):
        return os.stat(path).st_ino
    return None


def listen(listener, job):
    """Bind a socket, and return its name. The name stays the same, so a running ssh -L keeps working.

    Only you can write to the folder. Otherwise another user could replace the socket while ssh still forwards to it.
    """
    folder = os.path.expanduser("~/.cache/notebooks")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        path = os.path.join(folder, f"{job}-{socket.gethostname()}")
        with suppress(FileNotFoundError):
            os.unlink(path)  # of an earlier call
        listener.bind(path)
    except OSError:  # the name is too long for a socket, or that file system has none
        path = os.path.join(tempfile.mkdtemp(prefix="notebook-", dir="/tmp"), "sock")  # stays
        listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(100)
    return path


class Connection:
    """The step that carries connections to a job's node."""

    def __init__(self, job, host, folder, listener):
        """listener: the socket of this login node."""
        self.job, self.host, self.folder, self.listener = job, host, folder, listener
        self.relay, self.heard = None, False
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        """Take connections, and drop them while no step of srun runs."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # too many open files
                time.sleep(1)
                continue
            try:
                self.relay.add(connection)
            except (AttributeError, OSError, ValueError):  # there is no relay now, or its stream is closed
                connection.close()

    def run(self, on_ready):
        """Carry connections until the job has ended, or its node does not answer."""
        lost = 0
        while True:
            was_ready = self.carry(on_ready if not lost else lambda: print("connected again", flush=True))
            state = state_at_end(self.job)
            if state in ("gone", "COMPLETING", "SUSPENDED"):
                said = "Slurm does not answer" if state == "gone" else f"job {self.job} is {state}"
                print(f"{said}. Later, run: bash extras/notebook/notebook.sh {self.job}", file=sys.stderr)
                return
            if state != "RUNNING":
                print(f"job {self.job} has ended: {state}. {why(state, self.job)}", file=sys.stderr)
                return
            if not was_ready:
                print(
                    f"{self.host} does not answer: bash extras/notebook/notebook.sh {self.job} tries again,"
                    f" scancel {self.job} ends the job",
                    file=sys.stderr,
                )
                return
            lost += 1
            print(f"the connection to {self.host} was cut; connecting again", flush=True)
            time.sleep(1)

    def carry(self, on_ready):
        """Run a step until it ends. Return whether it could connect to JupyterLab."""
        command = ["srun", "--jobid=" + self.job, "--overlap", "--nodes=1", "--ntasks=1", "--cpus-per-task=1"]
        command += ["--export=ALL", "--quiet", "python3", "-B", RELAY, self.folder]
        step = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        readiness = []

        def ready():
            readiness.append(True)
            on_ready()

        def kill_if_silent():
            if not self.heard:
                step.kill()

        watchdog = threading.Timer(PATIENCE, kill_if_silent)
        watchdog.daemon = True
        watchdog.start()
        self.relay, self.heard = Relay(self.heard_lines(step.stdout), step.stdin), False
        try:
            self.relay.run(ready)
        finally:
            self.relay = None
            watchdog.cancel()
            self.end(step)
        return bool(readiness)

    def end(self, step):
        """End a step: relay.py ends when its stream does, and srun with it."""
        # In a thread: close() waits for a write that hangs if srun does not read.
        threading.Thread(target=close_quietly, args=(step.stdin,), daemon=True).start()
        try:
            step.wait(5)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()

    def heard_lines(self, stream):
        """Return the lines of a stream, and note that there are some."""
        for line in stream:
            self.heard = True
            yield line


def close_quietly(stream):
    """Close a stream whose other end may be gone."""
    with suppress(OSError, ValueError):
        stream.close()


def instructions(job, host, folder, path):
    """Return the ssh command and the address, as a text for the user."""
    with open(os.path.join(folder, "token")) as file:
        token = file.read()
    end = facts_of(job)["end"]
    until = time.strftime(" until %Y-%m-%d %H:%M", time.localtime(end)) if end else ""
    return f"""
JupyterLab runs on {host}{until}. On your own machine, in a terminal that stays open:

    ssh -N -L 8888:{path} {getpass.getuser()}@{socket.getfqdn()}

and in its browser:

    http://localhost:8888/lab?token={token}

If ssh says that the address is in use, write 8889 instead of 8888 in both lines.
Leave this script running. Ctrl-C ends it, and the notebook goes on.
"""


def facts_of(job):
    """Return state, end and output of a job.

    state: "gone" if Slurm does not know the job, or does not answer. end: [s since 1970; None if there is none].
    output: the path of the job's standard output; "" if not known.
    """
    record = record_of(job)
    facts = dict(reversed(re.findall(r"(\w+)=(.*?)(?= +\w+=|\s*$)", record)))  # the first value counts
    end = None
    with suppress(KeyError, ValueError):  # Unknown, or without a time limit
        end = datetime.strptime(facts["EndTime"], "%Y-%m-%dT%H:%M:%S").timestamp()
    if facts.get("TimeLimit") == "UNLIMITED":
        end = None
    return {"state": facts.get("JobState", "gone"), "end": end, "output": facts.get("StdOut", "")}


def record_of(job):
    """Return Slurm's record of a job; "" if Slurm does not know it, or does not answer for 60 s."""
    command = ["scontrol", "--oneliner", "show", "job", job]
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def state_at_end(job):
    """Return the state of a job whose step has ended, as RUNNING or TIMEOUT. Slurm may need a moment to know it."""
    for _ in range(30):
        state = facts_of(job)["state"]
        if state not in ("COMPLETING", "gone"):
            break
        time.sleep(1)
    return state


def why(state, job):
    """Return what to do about a job that has ended."""
    if state == "TIMEOUT":
        return "Its time limit is over: bash extras/notebook/notebook.sh --time=HH:MM:SS asks for more"
    return f"See its output, {facts_of(job)['output'] or f'notebook-{job}.out'}"


if __name__ == "__main__":
    main()
