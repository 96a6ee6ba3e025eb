"""Carries connections between two UNIX sockets, on a login node and on a compute node, over the streams of srun.

connect.py listens on the login node and starts this file on the compute node, as a step of the notebook's job:

    python3 slurm/notebook/relay.py FOLDER      connects to FOLDER/jupyter.sock

So it needs neither ssh to compute nodes nor an open port. What goes over the streams is lines:

    waiting           JupyterLab still starts
    ready             the socket on the compute node takes connections
    open NUMBER       a new connection
    data NUMBER TEXT  bytes of a connection, in base64
    close NUMBER      the connection has ended

Python 3.6, standard library only.
"""

import base64
import os
import socket
import sys
import threading
import time
from contextlib import suppress

# Bytes of a connection in a line, which then has some 940 characters. srun sends longer lines in several messages, and
# waits 40 ms between them (measured 2026-11-25).
CHUNK = 700


class Relay:
    """The connections of one end, by number. Each has a thread that reads it; run() reads the stream.

    The login node accepts connections: add(). Then the compute node opens one to JupyterLab: open().
    """

    def __init__(self, source, sink, connect=None):
        """source, sink: the streams, binary. connect: returns a socket for a connection that the other end opens."""
        self.source, self.sink, self.connect = source, sink, connect
        self.connections, self.lock, self.newest = {}, threading.Lock(), 0

    def send(self, *words):
        """Write a line."""
        with self.lock:
            self.sink.write(b" ".join(words) + b"\n")
            self.sink.flush()

    def add(self, connection):
        """Carry a connection that this end has accepted."""
        self.newest += 1
        number = str(self.newest).encode()
        self.send(b"open", number)
        self.start(number, connection)

    def start(self, number, connection):
        """Read a connection in a thread."""
        self.connections[number] = connection
        threading.Thread(target=self.forward, args=(number, connection), daemon=True).start()

    def forward(self, number, connection):
        """Send what a connection says, until it has ended."""
        try:
            data = connection.recv(CHUNK)
            while data:
                self.send(b"data", number, base64.b64encode(data))
                data = connection.recv(CHUNK)
        except OSError:
            pass  # it was reset, or the stream is gone
        self.end(number)
        with suppress(OSError, ValueError):  # the stream is gone, and run() returns
            self.send(b"close", number)

    def end(self, number):
        """Close a connection, if it is open."""
        connection = self.connections.pop(number, None)
        if connection:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
            connection.close()

    def run(self, on_ready=lambda: None):
        """Read the stream until it ends. on_ready: is called when the other end takes connections."""
        for line in self.source:
            verb, _, rest = line.rstrip(b"\n").partition(b" ")
            number, _, text = rest.partition(b" ")
            if verb == b"ready":
                on_ready()
            elif verb == b"open" and self.connect:
                self.open(number)
            elif verb == b"data" and number in self.connections:
                try:
                    self.connections[number].sendall(base64.b64decode(text))
                except (OSError, KeyError):
                    self.end(number)
            elif verb == b"close":
                self.end(number)
        for number in list(self.connections):
            self.end(number)

    def open(self, number):
        """Connect, as the other end has a new connection."""
        try:
            self.start(number, self.connect())
        except OSError:
            self.send(b"close", number)


def connect():
    """Return a connection to jupyter.sock in the current folder: a longer name may be too long for a socket."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("jupyter.sock")
    return connection


def main():
    """Wait for the socket, then carry connections until the other end goes."""
    os.chdir(sys.argv[1])
    relay = Relay(sys.stdin.buffer, sys.stdout.buffer, connect)
    while True:
        try:
            connect().close()
            break
        except OSError:
            time.sleep(0.2)  # it still starts
            print("waiting", flush=True)  # fails once srun is gone
    relay.send(b"ready")
    relay.run()


if __name__ == "__main__":
    main()
