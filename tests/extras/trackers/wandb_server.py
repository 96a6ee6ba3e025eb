"""A stand-in for the server of W&B."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from waiting import FOREVER


class StandInServer:
    """A stand-in for W&B's server: as much of it as wandb 0.31 asks for. It notes the rows, and fails what it is told.

    last_step: of the run that it has already. hangs: it answers until it is sent rows, and then never again.
    """

    def __init__(self, last_step=None, hangs=False):
        self.last_step, self.hangs, self.rows = last_step, hangs, {}
        self.silent = threading.Event()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.send_response(200)
                self.end_headers()

            def do_POST(self):
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Content-Encoding"] == "gzip":
                    content = gzip.decompress(content)
                answer = json.dumps(stand_in.answer(self.path, content)).encode()
                if stand_in.silent.is_set():
                    threading.Event().wait(FOREVER)
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_PUT = do_POST

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()

    def answer(self, path, content):
        if path.endswith("/file_stream"):
            self.note_rows(json.loads(content))
            return {}
        if path != "/graphql":
            return {}
        query = json.loads(content)
        project = {"id": "p", "name": "ours", "entity": {"id": "e", "name": "us"}}
        if "UpsertBucket" in query["query"]:
            run = {"id": "r", "name": query["variables"]["name"], "displayName": "run", "config": "{}"}
            run |= {"project": project, "historyLineCount": 0}
            return {"data": {"upsertBucket": {"bucket": run, "inserted": True}}}
        if "RunResumeStatus" in query["query"]:
            return {"data": {"model": {**project, "bucket": self.known_run()}}}
        if "CreateRunFiles" in query["query"]:
            names = query["variables"]["files"]
            files = [{"name": name, "uploadUrl": f"{self.address}/upload"} for name in names]
            return {"data": {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}}
        return {"data": {}}

    def known_run(self):
        if self.last_step is None:
            return None
        row = json.dumps({"_step": self.last_step})
        lines = {"historyLineCount": self.last_step, "eventsLineCount": 0, "logLineCount": 0}
        tails = {"historyTail": json.dumps([row]), "eventsTail": "[]", "summaryMetrics": row}
        return {"id": "r", "name": "run", **lines, **tails, "config": "{}", "tags": [], "wandbConfig": '{"t": 1}'}

    def note_rows(self, sent):
        """Note each row at its line of the run's history, as the server does."""
        history = sent.get("files", {}).get("wandb-history.jsonl")
        if history:
            if self.hangs:
                self.silent.set()
            self.rows |= enumerate(map(json.loads, history["content"]), start=history["offset"])
