"""What did it learn? Print text that a trained model writes.

    python training/sample.py runs/train                                          from the newest checkpoint there
    python training/sample.py runs/train --prompt "def " --length 400 --seed 1    other words to begin with
    python training/sample.py runs/train/checkpoint-00000200.pt                   from this one

One process, on the GPU if there is one, also while the training still writes to the folder.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH=1 leaves this folder out

from lm.arguments import positive_int
from lm.checkpoints import existing, is_of_torn_file
from lm.model import GPT, Config
from lm.setup import fail

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udc9f]")  # the last: bytes that are no UTF-8


def main() -> None:
    """Read the flags and a checkpoint, and print the prompt with what follows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = fail  # without the usage
    add = parser.add_argument
    add("path", nargs="?", type=Path, default=Path("runs/train"), help="--out of the training, or one checkpoint")
    add("--prompt", default="\n", metavar="TEXT", help="how the text begins (default: a new line)")
    add("--length", type=positive_int, default=400, metavar="N", help="bytes after it (default: %(default)s)")
    add("--temperature", type=float, default=0.8, metavar="T", help="0: always the likeliest byte (default: 0.8)")
    add("--seed", type=int, default=0, metavar="N", help="random seed of the text (default: %(default)s)")
    args = parser.parse_args()
    if not args.prompt or args.temperature < 0:
        fail(
            f"--prompt '{args.prompt}' has to have a character, and --temperature {args.temperature:g} to be 0 or more"
        )
    if not hasattr(GPT, "logits"):
        fail("GPT in lm/model.py has no logits(tokens), the scores of the next byte: it writes no text")

    state = read_checkpoint(args.path)
    model = GPT(Config(**{name: state["settings"][name] for name in vars(Config())}))
    model.load_state_dict(state["model"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = continue_text(model.to(device).eval(), os.fsencode(args.prompt), args, state["settings"]["context"], device)
    sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character
    print(printable(text.decode(errors="replace")))


def read_checkpoint(path: Path) -> dict:
    """Return the newest checkpoint of a folder that can be read, or the given one."""
    for found in [path] if path.is_file() else existing(path):
        try:
            # weights_only: a file cannot run code. mmap: the optimizer's moments are not read.
            state = torch.load(found, map_location="cpu", weights_only=True, mmap=True)
            print(f"{found}: step {state['step']}, loss {state['loss']:.4f}", file=sys.stderr, flush=True)
            return state
        except Exception as error:  # a torn one fails in many ways
            if not is_of_torn_file(error):
                raise
            print(f"warning: {found} is torn, or no checkpoint ({type(error).__name__}: {error})", file=sys.stderr)
    fail(f"{path} has no good checkpoint: give the folder that was the --out of a training")


@torch.no_grad()
def continue_text(model: GPT, text: bytes, args: argparse.Namespace, context: int, device: torch.device) -> bytes:
    """Return the text with args.length more bytes. The model sees the last `context` bytes before each."""
    generator = torch.Generator().manual_seed(args.seed)  # on the CPU: a GPU's draws other numbers
    for _ in range(args.length):
        tokens = torch.tensor([list(text[-context:])], device=device)
        logits = model.logits(tokens)[0, -1, :256].double().cpu()  # a larger vocabulary has tokens that are no bytes
        # Without the subtraction a low temperature would make them infinite.
        weights = ((logits - logits.max()) / max(args.temperature, 1e-9)).softmax(0)
        text += bytes([int(torch.multinomial(weights, 1, generator=generator))])
    return text


def printable(text: str) -> str:
    """Return text with control characters as ^[ and the like, as a terminal obeys them; tabs and line ends stay."""
    return CONTROL.sub(lambda found: "^" + chr(ord(found[0]) & 0x7F ^ 0x40), text)


if __name__ == "__main__":
    main()
