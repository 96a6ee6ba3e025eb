"""Runs node.sh on all nodes of a job, in a step of srun, and reads its samples. screen.py and summary.py import it.

Python 3.6, standard library only.
"""

import os
import selectors
import subprocess
import tempfile
import time

from job import facts_of
from samples import Node, Reader

NODE_SCRIPT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "node.sh")
PATIENCE = 20  # seconds without an answer of any node, after which each node gets a step of its own
MOST_STEPS = 64  # a job with more nodes gets no such steps: each is a process on the login node


class Sampling:
    """The steps that run node.sh, and their samples.

    steps: for each running step, its Reader and the bytes of its unfinished line. nodes: by name, in the order of the
    job. started: the start on the monotonic clock [s].
    """

    def __init__(self, job, hosts, arguments, on_sample=lambda node: None):
        """Start one step on all nodes.

        arguments: those of node.sh after the job's number. on_sample: is called with a node that has a new sample.
        """
        self.job, self.arguments, self.on_sample = job, arguments, on_sample
        self.nodes = {host: Node(host) for host in hosts}
        self.steps, self.asked_one_by_one = {}, len(hosts) > MOST_STEPS
        self.started = time.monotonic()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this object)
        self.selector = selectors.DefaultSelector()
        self.start(hosts)

    def start(self, hosts):
        """Start a step on some nodes."""
        command = ["srun", "--jobid=" + self.job, "--overlap", "--nodelist=" + ",".join(hosts)]
        command += [f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", "--ntasks-per-node=1", "--cpus-per-task=1"]
        command += ["--label", "--input=none", "--export=ALL", "--quit-on-interrupt"]
        command += ["bash", NODE_SCRIPT, self.job, *map(str, self.arguments)]
        # A session of its own: Ctrl-C is for this program alone.
        step = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True)
        self.steps[step] = (Reader(self.nodes), b"")
        self.selector.register(step.stdout, selectors.EVENT_READ, step)

    def run(self, until, enough=0):
        """Read samples until a moment; if `enough` is not 0, at most until each node has as many samples."""
        while time.monotonic() < until:
            self.ask_one_by_one_if_needed()
            if not self.steps or (enough and all(len(node.samples) >= enough for node in self.nodes.values())):
                return
            for key, _ in self.selector.select(min(until - time.monotonic(), 1.0)):
                self.read(key.data)

    def read(self, step):
        """Read the new lines of a step, or take note of its end."""
        reader, rest = self.steps[step]
        data = os.read(step.stdout.fileno(), 1 << 16)
        lines = (rest + data).split(b"\n")
        self.steps[step] = (reader, lines.pop())
        for line in lines:
            node = reader.add(line.decode(errors="replace"), time.monotonic())
            if node:
                self.on_sample(node)
        if not data:
            self.forget(step)

    def ask_one_by_one_if_needed(self):
        """Start a step for each node if no node has answered: a broken node may keep the common step from starting."""
        is_silent = all(node.heard is None for node in self.nodes.values())
        is_over = not self.steps or time.monotonic() > self.started + PATIENCE
        if is_silent and is_over and not self.asked_one_by_one:
            self.asked_one_by_one = True
            self.stop()
            if facts_of(self.job)["state"] == "RUNNING":
                for host in self.nodes:
                    self.start([host])

    def stop(self):
        """End all steps."""
        for step in self.steps:
            step.terminate()
        for step in list(self.steps):
            try:
                step.wait(5)
            except subprocess.TimeoutExpired:
                step.kill()
            self.forget(step)

    def forget(self, step):
        """Close the pipe of a step that has ended."""
        self.selector.unregister(step.stdout)
        step.stdout.close()
        step.wait()
        del self.steps[step]

    def last_error(self):
        """Return the last line that srun has printed."""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")
