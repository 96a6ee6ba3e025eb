"""Rank 0 asks a server whose certificate nobody has signed, as behind the proxy of a site."""

import os
import ssl
import subprocess
import threading
import time
import urllib.request
from http.server import HTTPServer, SimpleHTTPRequestHandler

import startup

if os.environ["RANK"] == "0":
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subprocess.run(command.split(), check=True, stderr=subprocess.DEVNULL)
    server = HTTPServer(("localhost", 0), SimpleHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("cert.pem", "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    urllib.request.urlopen(f"https://localhost:{server.server_port}/model.safetensors")
time.sleep(600)
