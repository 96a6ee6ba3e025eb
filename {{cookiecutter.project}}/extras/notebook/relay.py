"""Carries connections between two UNIX sockets, on a login node and on a compute node, over the streams of srun.

connect.py listens on the login node and starts this file on the compute node, as a step of the notebook's job:

    python3 extras/notebook/relay.py FOLDER      connects to FOLDER/jupyter.sock

So it needs neither ssh to compute nodes nor an open port. The two ends exchange these lines:

    waiting           JupyterLab still starts
    ready             the socket on the compute node takes connections
    open NUMBER       a new connection
    data NUMBER TEXT  bytes of a connection, in base64
    took NUMBER       the receiver has written TOOK more chunks of this connection
    close NUMBER      the connection has ended

At most WINDOW chunks of a connection are on their way. So a stalled browser tab delays only its own connection.

Python 3.6, standard library only.
"""

import base64
import os
import queue
import socket
import sys
import threading
import time
from contextlib import suppress

# Bytes in a chunk, one line of data: about 940 characters in base64. srun sends a longer line in several messages, and
# waits 40 ms between them (measured 2026-11-25).
CHUNK = 700
WINDOW = 1000  # chunks of a connection that may be on their way
TOOK = 100  # the receiver sends a line after so many chunks


class Relay:
    """The connections of one end, by number. Each has a thread that reads it and one that writes it.

    run() reads the stream, and waits for no connection.
    add() takes a connection on the login node. open() makes its counterpart to JupyterLab on the compute node.
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
        self.connections[number] = Carried(connection)  # first, as the other end may close it at once
        self.send(b"open", number)
        self.start(number)

    def start(self, number):
        """Read and write a connection in threads."""
        carried = self.connections.get(number)
        if not carried:
            return  # the other end has closed it
        threading.Thread(target=self.forward, args=(number, carried), daemon=True).start()
        threading.Thread(target=self.deliver, args=(number, carried), daemon=True).start()

    def forward(self, number, carried):
        """Send the bytes that a connection receives, until its end."""
        try:
            while carried.is_open:
                carried.room.acquire()
                data = carried.socket.recv(CHUNK)
                if not data:
                    break
                self.send(b"data", number, base64.b64encode(data))
        except (OSError, ValueError):
            pass  # the connection was reset, or the stream is closed
        self.end(number)
        with suppress(OSError, ValueError):  # the stream is closed, and run() returns
            self.send(b"close", number)

    def deliver(self, number, carried):
        """Write the chunks of the other end to a connection, until its end."""
        taken = 0
        with suppress(OSError, ValueError):  # the connection has ended, or the stream
            for data in iter(carried.waiting.get, None):
                carried.socket.sendall(data)
                taken += 1
                if taken % TOOK == 0:
                    self.send(b"took", number)
        self.end(number)

    def end(self, number):
        """Close a connection, if it is open."""
        carried = self.connections.pop(number, None)
        if carried:
            carried.close()

    def run(self, on_ready=lambda: None):
        """Read the stream until it ends. on_ready: is called when the other end takes connections."""
        for line in self.source:
            verb, _, rest = line.rstrip(b"\n").partition(b" ")
            number, _, text = rest.partition(b" ")
            if verb == b"ready":
                on_ready()
            elif verb == b"open" and self.connect:
                self.open(number)
            elif number in self.connections:
                self.tell(self.connections.get(number), verb, text)
        for number in list(self.connections):
            self.end(number)

    def tell(self, carried, verb, text):
        """Hand a line to the threads of its connection. None: the connection has just ended."""
        if carried and verb == b"data":
            carried.waiting.put(base64.b64decode(text))
        elif carried and verb == b"close":
            carried.waiting.put(None)  # after the data that still waits
        elif carried and verb == b"took":
            for _ in range(TOOK):
                carried.room.release()

    def open(self, number):
        """Connect, as the other end has a new connection."""
        try:
            self.connections[number] = Carried(self.connect())
        except OSError:
            self.send(b"close", number)
        else:
            self.start(number)


class Carried:
    """One connection: its socket, its queue and its window.

    waiting: the chunks to write to the socket, then None. room: counts the chunks that may still be sent.
    """

    def __init__(self, connection):
        """connection: its socket."""
        self.socket, self.is_open = connection, True
        self.waiting, self.room = queue.Queue(), threading.Semaphore(WINDOW)

    def close(self):
        """Close the connection, and wake its threads."""
        self.is_open = False
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.waiting.put(None)
        self.room.release()


def connect():
    """Return a connection to jupyter.sock in the current folder. A full path may exceed a socket's 107 bytes."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("jupyter.sock")
    return connection


def main():
    """Wait for the socket, then carry connections until the other end goes."""
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.stderr.write("extras/notebook/relay.py: call bash extras/notebook/notebook.sh JOBID instead\n")
        sys.exit(2)
    os.chdir(sys.argv[1])
    relay = Relay(sys.stdin.buffer, sys.stdout.buffer, connect)
    while True:
        try:
            connect().close()
            break
        except OSError:
            time.sleep(0.2)  # JupyterLab still starts
            print("waiting", flush=True)  # fails once srun is gone
    relay.send(b"ready")
    relay.run()


if __name__ == "__main__":
    main()
