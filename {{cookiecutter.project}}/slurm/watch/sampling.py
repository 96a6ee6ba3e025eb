"""Has each node of a job tell what it does, in a step of its own. screen.py and summary.py import it.

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
PATIENCE = 20  # seconds; if until then no node at all has answered, each is asked by itself
MOST_STEPS = 64  # but only if there are no more nodes: each takes a process here


class Sampling:
    """The steps that run node.sh, and what they have told.

    steps: the running ones, with the Reader of each and what has come of its last line. nodes: by name, in the order of
    the job. started: when [s, monotonic].
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
        command += [NODE_SCRIPT, self.job, *map(str, self.arguments)]
        # A session of its own: Ctrl-C is for this program alone.
        step = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True)
        self.steps[step] = (Reader(self.nodes), b"")
        self.selector.register(step.stdout, selectors.EVENT_READ, step)

    def run(self, until, enough=0):
        """Read what the steps tell until a moment, or until each node has so many samples (0: until then)."""
        while time.monotonic() < until:
            self.ask_one_by_one_if_needed()
            if not self.steps or (enough and all(len(node.samples) >= enough for node in self.nodes.values())):
                return
            for key, _ in self.selector.select(min(until - time.monotonic(), 1.0)):
                self.read(key.data)

    def read(self, step):
        """Read what a step has told, or take note of its end."""
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
        """Start a step for each node if no node has answered: a step with a broken node may not start at all."""
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
