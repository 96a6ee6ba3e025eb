"""Keeps the code of Jinja's templates in the folder COMPILED_TEMPLATES: compiling them takes most of a bake's time."""

from __future__ import annotations

import hashlib
import marshal
import os
from pathlib import Path

import jinja2
from cookiecutter.environment import StrictEnvironment

FOLDER = Path(os.environ["COMPILED_TEMPLATES"])


def compile_once(environment, source, name=None, filename=None, *rest, compile_anew=StrictEnvironment.compile):
    """Stand in for jinja2's Environment.compile. Another version of the template may preprocess a text otherwise."""
    text = environment.preprocess(source, name, filename)
    key = repr((jinja2.__version__, text, name, filename, rest))
    file = FOLDER / hashlib.sha256(key.encode()).hexdigest()
    if file.exists():
        return marshal.loads(file.read_bytes())
    code = compile_anew(environment, source, name, filename, *rest)
    new = file.with_suffix(f".{os.getpid()}")
    new.write_bytes(marshal.dumps(code))
    new.rename(file)
    return code


StrictEnvironment.compile = compile_once
