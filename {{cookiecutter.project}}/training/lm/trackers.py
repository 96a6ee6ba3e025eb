"""Metrics where people look at them: TensorBoard and W&B (Weights & Biases), beside metrics.jsonl.

metrics.jsonl is the truth, a tracker shows it. Metrics hands each row to the trackers on rank 0; the other ranks have
none.

A run may take several attempts: each start of the program with --resume is one more. It repeats the steps after the
last checkpoint, which the attempt before may have reported already. The classes below say why each step is still shown
once.

To report to something else, write a class with these members, and add it to start_trackers():

    start_line       what rank 0 prints at the start
    write(row)       take a row of metrics.jsonl: "step", and "loss" or "val_loss" with others
    finish()         return what rank 0 prints at the end
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import netrc
import os
import queue
import shlex
import ssl
import threading
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from distributed import fail

Row = dict[str, Any]

# The modules that a flag needs. torch.utils.tensorboard imports NumPy too (torch 2.13, summary.py, 2026-11-22).
MODULES = {"tensorboard": ("tensorboard", "numpy"), "wandb": ("wandb",)}
# An empty file gap-after-120 in TensorBoard's folder says: the curve there may lack the steps after 120.
GAP = "gap-after-"
ANSWER_SECONDS = 5.0  # if W&B's server takes longer to answer, the run is offline
WANDB_PATIENCE = 60.0  # seconds that W&B may take to begin, and as many to send the last rows


def require_packages(args: argparse.Namespace) -> None:
    """Fail if a flag asks for a package that is not installed. Looks for it only: rank 0 alone will import it."""
    for package, modules in MODULES.items():
        for module in modules:
            if getattr(args, package) and not is_installed(module):
                fail(f"--{package} needs the package {module}: pip install {module}, or leave out --{package}")


def is_installed(module: str) -> bool:
    """Return whether a module can be found. A mere folder of that name, such as W&B's own ./wandb, does not count."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def start_trackers(args: argparse.Namespace, first_step: int, metrics_file: Path) -> list[TensorBoard | WandB]:
    """Return the trackers that the flags ask for. On rank 0 only.

    metrics_file: has the rows up to first_step, after which the run goes on, and no later ones.
    """
    trackers: list[TensorBoard | WandB] = []
    board = Path(args.out, "tensorboard")
    if args.tensorboard:
        trackers.append(TensorBoard(board, first_step, metrics_file))
    elif board.exists():  # an earlier attempt had --tensorboard: a later one with it fills the gap that begins here
        Path(board, f"{GAP}{first_step}").touch()
    if args.wandb:
        trackers.append(WandB(args, first_step, metrics_file))
    return trackers


def rows_until(step: int, metrics_file: Path) -> Iterator[Row]:
    """Read the rows of metrics.jsonl up to a step, one by one: the file may be long, and may be growing.

    Steps only grow from row to row. "steps" and "time" are left out, as Metrics hands rows over without them.
    """
    with metrics_file.open() as lines:
        for line in lines:
            if not line.endswith("\n"):  # it is being written
                return
            row = json.loads(line)
            if row["step"] > step:
                return
            yield {name: value for name, value in row.items() if name not in ("steps", "time")}


def import_or_fail(module: str, flag: str) -> Any:
    """Import a module that is installed. It may still be too old for this Python or torch, or half installed."""
    with Caught() as caught:  # not ImportErrors alone: a protobuf that is too new raises a TypeError
        return importlib.import_module(module)
    # Only after an error: without one the function has returned.
    fail(f"{flag}: {caught.error}. Install its package again, or leave out {flag}")


# TensorBoard


class TensorBoard:
    """Event files in one folder; each attempt writes one more.

    Why each step is shown once: purge_step tells TensorBoard to forget what earlier event files have from that step on.
    They have every step before it, because a row is in an event file before the checkpoint of its step is saved.

    An attempt without --tensorboard leaves a gap in the curve. So it leaves a file that says where the gap begins, see
    GAP. The next attempt with --tensorboard fills the gap from metrics.jsonl.
    """

    def __init__(self, folder: Path, first_step: int, metrics_file: Path) -> None:
        """Go on after first_step. First write the rows of earlier attempts that had no --tensorboard.

        Steps are counted from 1.
        """
        SummaryWriter = import_or_fail("torch.utils.tensorboard", "--tensorboard").SummaryWriter
        gaps = list(folder.glob(f"{GAP}*"))
        last_complete = min([first_step, *(int(path.name[len(GAP) :]) for path in gaps)])
        if not any(folder.glob("events.*")):
            last_complete = 0
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / f"{GAP}{last_complete}"
        note.touch()  # for the next attempt, if this one is killed before it has filled the gap
        self.writer = SummaryWriter(str(folder), purge_step=last_complete + 1)
        self.start_line = f"board   tensorboard --logdir {shlex.quote(str(folder))}"
        for row in rows_until(first_step, metrics_file):
            if row["step"] > last_complete:
                self.add(row)
        self.writer.flush()
        for path in {note, *gaps}:
            path.unlink()

    def write(self, row: Row) -> None:
        """Bring a row into the file."""
        self.add(row)
        self.writer.flush()  # waits until the writer's thread has written all, about half a millisecond

    def add(self, row: Row) -> None:
        """Give each number of a row to the writer's thread."""
        for name, value in numbers(row).items():
            self.writer.add_scalar(name, value, row["step"])

    def finish(self) -> str:
        """Close the file."""
        self.writer.close()
        return ""


# W&B


class WandB:
    """A run of W&B: online where its server can be reached, else in files that `wandb sync` sends later.

    Why each step is shown once: every attempt begins with the rows of all attempts before it, from metrics.jsonl.

    - Online, W&B says which step it expects next (starting_step). Rows before that are skipped, because W&B has them.
    - Offline, every attempt writes a folder of its own, which has the whole run. The newest folder is the one to send:
      on the server, it replaces an older one of the same id.

    Offline it cannot be done as online. W&B ignores `resume` there up to 0.28 (core/internal/runupserter/runupserter.go
    at b6e2950, 2026-08-21). For the folders see https://github.com/wandb/wandb/issues/3841, /5865 (read 2026-11-22).

    No training step waits for W&B, because a thread hands over the rows. An error of W&B ends that thread, and the
    training goes on.
    """

    def __init__(self, args: argparse.Namespace, first_step: int, metrics_file: Path) -> None:
        """Begin a run of W&B, or go on with it after --resume."""
        self.wandb = import_or_fail("wandb", "--wandb")
        if "finish_timeout" not in getattr(self.wandb.Settings, "model_fields", ()):
            # The setting that bounds the wait at the end (CHANGELOG.md of wandb, 0.27.0, 2026-05-14).
            fail(f"--wandb needs wandb 0.27 or newer, here is {self.wandb.__version__}: pip install --upgrade wandb")
        # The other ranks wait meanwhile, and fail after --timeout. There may be three waits: for an answer of the
        # server, for a beginning online, and for one offline. A quarter for each leaves a quarter for all else.
        self.patience = min(WANDB_PATIENCE, args.timeout / 4)
        self.answer_seconds = min(ANSWER_SECONDS, args.timeout / 4)
        self.trouble, self.run = "", None
        self.id = run_id(Path(args.out, "wandb", "run-id"), args.resume)
        with Caught() as caught:
            settings = self.wandb.setup().settings
        if caught.error:
            fail(f"--wandb: {caught.error}. Look into the variables WANDB_* and ~/.config/wandb")
        self.mode, why = choose_mode(settings, self.answer_seconds)
        with Caught() as caught:
            self.run = self.begin(args)
        if caught.error:
            self.mode, why = "offline", caught.error
            with Caught() as caught_offline:
                self.wandb.teardown()  # else wandb 0.31 says that the run's id is in use (2026-11-23)
                self.run = self.begin(args)
            self.trouble = caught_offline.error

        if self.run is None:
            self.start_line = f"wandb   off: {self.trouble}"
            return
        self.start_line = f"wandb   {self.mode}: {self.run.url if self.mode == 'online' else why}"
        if self.mode == "offline":
            self.start_line += f"\n{self.how_to_sync()}"
        self.rows: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.send, args=(first_step, metrics_file), daemon=True)
        self.thread.start()

    def begin(self, args: argparse.Namespace) -> Any:
        """Return W&B's run. Raises what W&B raises."""
        settings = self.wandb.Settings(
            silent=True,  # its lines would break into the lines of progress
            console="off",
            init_timeout=self.patience,
            finish_timeout=self.patience,  # the default is to try for as long as it takes
            finish_timeout_raises=True,
        )
        return self.wandb.init(
            project=args.wandb,
            dir=args.out,
            id=self.id,
            name=os.environ.get("WANDB_NAME") or Path(args.out).resolve().name,
            config={name: value for name, value in vars(args).items() if isinstance(value, (int, float, str))},
            mode=self.mode,
            resume="allow" if self.mode == "online" else None,
            settings=settings,
        )

    def write(self, row: Row) -> None:
        """Queue a row for W&B."""
        if self.run is not None:
            self.rows.put(row)

    def send(self, first_step: int, metrics_file: Path) -> None:
        """Hand W&B the rows of earlier attempts that it has not, and then each row as it comes. In a thread."""
        with Caught() as caught:
            for row in rows_until(first_step, metrics_file):
                self.send_row(row)
            while (row := self.rows.get()) is not None:
                self.send_row(row)
            self.run.finish()
        self.trouble = caught.error
        with Caught():
            self.wandb.teardown()  # waits for W&B's own process, which writes the file to its end after finish()

    def send_row(self, row: Row) -> None:
        """Hand W&B a row of a step that it does not have. It would ignore any other, and write a warning.

        W&B joins rows of the same step: a loss and a validation loss.
        """
        if row["step"] >= self.run.starting_step:
            self.run.log(numbers(row), step=row["step"])

    def finish(self) -> str:
        """Wait for the last rows, but not for long. Return what is left to do."""
        if self.run is not None:
            self.rows.put(None)
            self.thread.join(self.patience + self.answer_seconds)  # a little longer than W&B itself waits
            if self.thread.is_alive():
                self.trouble = self.trouble or f"not done in {self.patience:g} seconds"
        if self.trouble:
            return f"wandb   does not have all rows ({self.trouble}): metrics.jsonl has them, and --resume sends them"
        return self.how_to_sync() if self.mode == "offline" else ""

    def how_to_sync(self) -> str:
        """Return the command that sends the whole run, earlier attempts included."""
        folder = Path(self.run.dir).parent
        return f"wandb   to send it, from a machine with internet: wandb sync {shlex.quote(str(folder))}"


class Caught(AbstractContextManager):
    """Like contextlib.suppress(Exception), and keeps the error for a line of output."""

    error = ""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """Keep an Exception, and go on after the block. SystemExit and KeyboardInterrupt are none: they go on."""
        if not isinstance(error, Exception):
            return False
        self.error = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return True


def numbers(row: Row) -> dict[str, float]:
    """Return what a row measures, without what is not known, such as the MFU on a CPU."""
    return {name: value for name, value in row.items() if name != "step" and value is not None}


def choose_mode(settings: Any, answer_seconds: float) -> tuple[str, str]:
    """Return W&B's mode, "online", "offline" or "disabled", and why. settings: those that W&B has found.

    "run" and "dryrun" are older words of W&B for the first two.
    """
    if os.environ.get("WANDB_MODE"):
        mode = os.environ["WANDB_MODE"]
        return {"run": "online", "dryrun": "offline"}.get(mode, mode), f"WANDB_MODE={mode}"
    if settings.mode in ("offline", "disabled"):
        return settings.mode, f"W&B's settings say so, as after wandb {settings.mode}"
    if not has_key(settings):
        return "offline", f"no API key for {settings.base_url}, wandb login stores one"
    if not answers(settings.base_url, answer_seconds):
        return "offline", f"no answer from {settings.base_url} in {answer_seconds:g} seconds"
    return "online", "there is a key, and the server answers"


def has_key(settings: Any) -> bool:
    """Return whether W&B will find an API key, or a token in its place. Without one it would ask at a terminal.

    Its settings have those of the environment and of its own files. `wandb login` writes into the netrc file, under the
    name of the server. For one server it takes another name (wandb/sdk/lib/wbauth/wbnetrc.py and urls.py of 0.31.0).
    """
    if settings.api_key or settings.identity_token_file:
        return True
    server = urlsplit(settings.base_url).netloc
    names = [server, "api.wandb.ai"] if server == "api.forge.coreweave.com" else [server]
    try:
        keys = netrc.netrc(Path(os.environ.get("NETRC") or "~/.netrc").expanduser())
    except (OSError, RuntimeError, ValueError, netrc.NetrcParseError):  # no home folder; no UTF-8
        return False
    return any(keys.authenticators(name) for name in names)


def answers(server: str, seconds: float) -> bool:
    """Return whether the server answers in time, if only with an error. A proxy of the environment is used."""
    answered = []

    def ask() -> None:
        try:
            urlopen(Request(server, method="HEAD"), timeout=seconds).close()
            answered.append("well")
        except HTTPError:
            answered.append("with an error")
        except URLError as error:
            if isinstance(error.reason, ssl.SSLError):
                answered.append("with a certificate that this Python cannot check, but W&B may")
        except (OSError, ValueError, HTTPException):
            pass

    # In a thread, because urlopen's timeout does not count the resolution of the name. A daemon ends with this process.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answered)


def run_id(file: Path, resume: bool) -> str:
    """Return W&B's id of this run, which --resume keeps."""
    if resume and file.exists():
        return file.read_text().strip()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{uuid.uuid4().hex[:12]}\n")
    return file.read_text().strip()
