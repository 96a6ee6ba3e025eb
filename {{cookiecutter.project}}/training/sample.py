"""What did the model learn? Print text that a trained model writes.

    python training/sample.py runs/train                                          from the newest checkpoint there
    python training/sample.py runs/train --prompt "def " --length 400 --seed 1    other words to begin with
    python training/sample.py runs/train/checkpoint-00000200.pt                   from this one

One process, on the GPU if there is one, also while the training still writes to the folder.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH=1 leaves this folder out

from lm.arguments import positive_int
from lm.checkpoints import read_newest
from lm.model import GPT, Config
from lm.setup import fail


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
    if not (args.prompt and args.temperature >= 0):
        fail(f"--prompt '{args.prompt}' has to have a character, --temperature {args.temperature:g} to be 0 or more")

    path, state, _ = read_newest(args.path, mmap=True)
    if path is None:
        fail(f"{args.path} has no checkpoint: give the folder that was the --out of a training")
    print(f"{path}: step {state['step']}, loss {state['loss']:.4f}", file=sys.stderr, flush=True)
    model = GPT(Config(**{name: state["settings"][name] for name in vars(Config())}))
    model.load_state_dict(state["model"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = continue_text(model.to(device).eval(), os.fsencode(args.prompt), args, state["settings"]["context"], device)
    # A terminal would obey control characters.
    shown = (c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text.decode(errors="replace"))
    sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character
    print("".join(shown))


@torch.no_grad()
def continue_text(model: GPT, text: bytes, args: argparse.Namespace, context: int, device: torch.device) -> bytes:
    """Return the text with args.length more bytes. The model sees the last `context` bytes before each."""
    generator = torch.Generator().manual_seed(args.seed)  # on the CPU, as a GPU would draw other numbers
    for _ in range(args.length):
        tokens = torch.tensor([list(text[-context:])], device=device)
        logits = model.logits(tokens)[0, -1, :256].double().cpu()  # a larger vocabulary has tokens that are no bytes
        # Without the subtraction a low temperature would make them infinite.
        weights = ((logits - logits.max()) / max(args.temperature, 1e-9)).softmax(0)
        text += bytes([int(torch.multinomial(weights, 1, generator=generator))])
    return text


if __name__ == "__main__":
    main()
