"""What did it learn? Print text that a trained model writes.

    python training/sample.py runs/train                                          from the newest checkpoint there
    python training/sample.py runs/train --prompt "def " --length 400 --seed 1    other words to begin with
    python training/sample.py runs/train/checkpoint-00000200.pt                   from this one

One process, on the GPU if there is one, also while the training still writes to the folder. To leave the GPU to the
training, set CUDA_VISIBLE_DEVICES to nothing. The checkpoints are those of any training program, written by any number
of ranks; those of train_fsdp.py need NumPy. Which checkpoint was read stands on standard error, the text on standard
output. Exit code 2: something that you asked for cannot be done, and the message says what to change.
"""

from __future__ import annotations

import argparse
import codecs
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH=1 leaves this folder out

from arguments import positive_int, zero_or_more
from checkpoint import Checkpoints, lacks_memory
from distributed import fail, launched_world_size
from model import GPT, Config

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f]")  # the last: bytes that are no UTF-8


def zero_or_above(text: str) -> float:
    """Read a finite number, 0 or above."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} has to be a number, 0 or above")
    return number


def parse_arguments() -> argparse.Namespace:
    """Read the flags, and refuse what cannot work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = fail  # without the usage
    parser.add_argument(
        "checkpoint",
        nargs="?",
        type=Path,
        default=Path("runs/train"),
        metavar="PATH",
        help="folder that was the training's --out, or one checkpoint in it (default: %(default)s)",
    )
    parser.add_argument("--prompt", default="\n", metavar="TEXT", help="how the text begins (default: a new line)")
    parser.add_argument(
        "--length", type=positive_int, default=400, metavar="N", help="bytes after the prompt (default: %(default)s)"
    )
    parser.add_argument(
        "--temperature",
        type=zero_or_above,
        default=0.8,
        metavar="T",
        help="1: bytes are as frequent as the model expects; below 1 likely bytes are more frequent; "
        "0: always the most likely byte (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=zero_or_more, default=0, metavar="N", help="random seed of the text (default: %(default)s)"
    )
    args = parser.parse_args()
    if not args.prompt:
        fail("--prompt '' is empty, and the model continues what is there: give at least one character")
    if launched_world_size() > 1:
        fail(f"each of {launched_world_size()} ranks would print the text: start one process, without a launcher")
    return args


class Checkpoint(NamedTuple):
    """What is needed of a checkpoint to write text."""

    path: Path
    step: int
    loss: float
    settings: dict[str, Any]
    weights: dict[str, torch.Tensor]


def read_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint of any training program. Of one that is torn, this fails in many ways."""
    if path.is_dir():
        state = json.loads((path / "run.json").read_text())
        weights = read_shards(path)
    else:
        # weights_only: a file cannot run code. mmap: what is not used, the optimizer's moments, is not read.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        weights = state["model"]
    return Checkpoint(path, state["step"], state["loss"], state["settings"], weights)


def read_shards(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a folder of train_fsdp.py, put together from the parts of its ranks."""
    import shards  # imports torch.distributed.checkpoint, which takes half a second

    weights = shards.empty_weights(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # load() says that without a process group it reads for this process alone
        shards.load({"model": weights}, path)
    return weights


def require_numpy(path: Path) -> None:
    """Fail if this Python has no NumPy, which torch.distributed.checkpoint needs."""
    try:
        torch.zeros(1).numpy()
    except RuntimeError:
        fail(f"{path} is of train_fsdp.py, and torch needs NumPy to read its parts: pip install numpy")


def try_to_read(path: Path) -> tuple[Checkpoint | None, str]:
    """Return a checkpoint, or None and what is wrong with it."""
    if path.is_dir():
        require_numpy(path)
    try:
        return read_checkpoint(path), ""
    except BaseException as error:  # a torn one fails in many ways, and not all are an Exception
        if isinstance(error, (SystemExit, KeyboardInterrupt)) or lacks_memory(error):
            raise  # no fault of the file
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"
        return None, f"{path} is torn, or no checkpoint ({reason})"


def find_checkpoint(given: Path) -> Checkpoint:
    """Return the given checkpoint, or the newest in the given folder that can be read."""
    if not given.exists():
        fail(f"{given}: no such file or folder. Give the folder that was the training's --out, or a checkpoint in it")
    if given.is_file() or (given / "run.json").exists():
        checkpoint, problem = try_to_read(given)
        return checkpoint or fail(f"{problem}: give another one, or its folder to have the newest that can be read")
    return newest_checkpoint(given)


def newest_checkpoint(folder: Path) -> Checkpoint:
    """Return the newest checkpoint in a folder that can be read. Warn of each that cannot.

    A run that still trains removes old checkpoints. So this looks into the folder again after each that failed.
    """
    checkpoints = Checkpoints(str(folder), keep=1, settings={})  # only to list what is there
    passed_over = set()
    while untried := [path for path in checkpoints.existing() if path not in passed_over]:
        path = untried[0]
        checkpoint, problem = try_to_read(path)
        if checkpoint:
            return checkpoint
        passed_over.add(path)
        if path.exists():
            print(f"warning: {problem}: passed over", file=sys.stderr)
    if passed_over:
        fail(f"no checkpoint in {folder} is good: give the folder of another run")
    fail(f"{folder} has no checkpoint: give the folder that was the training's --out, or wait for its first checkpoint")


def rebuild_model(checkpoint: Checkpoint) -> GPT:
    """Return the model with the weights of a checkpoint, in their precision."""
    if not hasattr(GPT, "logits"):
        fail("GPT in model.py has no logits(tokens), from which the next byte is drawn: see the top of model.py")
    other = f"{checkpoint.path} is of another model than model.py's"
    try:
        model = GPT(Config(**{name: checkpoint.settings[name] for name in vars(Config())}))
        model.to(next(weight.dtype for weight in checkpoint.weights.values() if weight.is_floating_point()))
        model.load_state_dict(checkpoint.weights)
    except KeyError as error:
        fail(f"{other}: it has no setting {error}. Use the model.py that it was trained with")
    except (RuntimeError, ValueError) as error:
        if lacks_memory(error):
            raise  # no fault of the model
        reason = " ".join(str(error).split())[:300]
        fail(f"{other}: {reason}. Use the model.py that it was trained with")
    if not all(weight.isfinite().all() for weight in model.parameters()):
        fail(f"{checkpoint.path} has weights that are not finite, its training diverged: give an earlier checkpoint")
    return model.eval()


@torch.no_grad()
def continue_text(
    model: GPT, prompt: bytes, length: int, context: int, temperature: float, seed: int, device: torch.device
) -> Iterator[bytes]:
    """Yield the next bytes one by one. The model sees the last `context` bytes before each."""
    generator = torch.Generator().manual_seed(seed % 2**32)  # on the CPU: a GPU's draws other numbers
    text = bytearray(prompt)
    for _ in range(length):
        tokens = torch.tensor([list(text[-context:])], device=device)
        logits = model.logits(tokens)[0, -1, :256].double().cpu()  # a larger vocabulary has tokens that are no bytes
        if temperature == 0:
            byte = int(logits.argmax())
        else:
            # Without the subtraction a low temperature would make them infinite.
            probabilities = ((logits - logits.max()) / temperature).softmax(0)
            byte = int(torch.multinomial(probabilities, 1, generator=generator))
        text.append(byte)
        yield bytes([byte])


def printable(text: str) -> str:
    """Return text with control characters as ^[ and the like, as a terminal obeys them; tabs and line ends stay."""
    return CONTROL.sub(lambda found: "^" + chr(ord(found[0]) & 0x7F ^ 0x40), text)


def print_text(args: argparse.Namespace) -> None:
    """Read a checkpoint, rebuild its model, and print the prompt and what follows, byte by byte."""
    checkpoint = find_checkpoint(args.checkpoint)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = rebuild_model(checkpoint).to(device)
    print(f"{checkpoint.path}: step {checkpoint.step}, loss {checkpoint.loss:.4f}", file=sys.stderr, flush=True)

    prompt, context = os.fsencode(args.prompt), checkpoint.settings["context"]
    sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character
    characters = codecs.getincrementaldecoder("utf-8")(errors="replace")  # one character may have several bytes
    print(printable(characters.decode(prompt)), end="", flush=True)
    for byte in continue_text(model, prompt, args.length, context, args.temperature, args.seed, device):
        print(printable(characters.decode(byte)), end="", flush=True)
    print(characters.decode(b"", final=True))


def main() -> None:
    """Print text, or say that the machine is too small for the model."""
    args = parse_arguments()
    try:
        print_text(args)
    except BaseException as error:  # CheckpointException of torch.distributed.checkpoint is no Exception
        if not lacks_memory(error):
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]  # the last one names the cause
        fail(f"too little memory for {args.checkpoint} ({lines[-1][:300]}): use a larger machine or GPU")


if __name__ == "__main__":
    main()
