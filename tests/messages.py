"""Prints every message that a user of the template or of a written project can see, file by file.

    python tests/messages.py [FILE …]

Messages are read from the source: errors, warnings, progress, help texts, the usage at the top of scripts, the comments
of env.sh. The author of a message reads it here as users do: alone, without the code around it. A test looks for
vague words in the messages.

Python: each text of three words or more, and each shorter text that a function of SPEAKERS or an argument of
HELP_ARGUMENTS gets. A docstring counts if the program prints it. Bash: the arguments of the functions of BASH_SPEAKERS,
and the texts of BASH_VARIABLES. Templates are read as they stand, with their lines of Jinja.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = REPOSITORY / "{{cookiecutter.project}}"
SUFFIXES = {".py", ".sh", ".rc", ".sbatch"}

# Functions of Python that print or raise what they are given, by the last part of the name: sys.exit is "exit".
SPEAKERS = {"die", "error", "exit", "fail", "print", "refuse", "refuse_on_all_ranks", "say", "tell"}
HELP_ARGUMENTS = {"description", "epilog", "help", "prompt", "rule", "says", "usage"}
# Functions and arguments whose texts are no messages: regular expressions, and lines of other programs.
SILENT_FUNCTIONS = {"compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"}
SILENT_ARGUMENTS = {"examples", "patterns", "source"}
PATTERN = re.compile(r"\\[bdsSwW.(\[]|\(\?|\.\*|\[\^")

# Functions of bash that print their arguments, and variables that become part of a message.
BASH_SPEAKERS = ("add_fault", "check_writable", "die", "echo", "missing", "print_row", "printf", "say", "tell")
BASH_VARIABLES = ("advice", "fault", "fix", "reason", "unfit")
# A command begins a line, or follows an operator or a keyword.
SPOKEN = re.compile(
    rf"(?m)(?:^|[;&|({{!]|\b(?:then|do|else|local)\b|\))[ \t]*"
    rf"(?:(?:{'|'.join(BASH_SPEAKERS)})(?=[ ])|(?:fault=\S+ )?(?:{'|'.join(BASH_VARIABLES)})(?:\[\S+\])?\+?=)"
)
PRINTS_USAGE = re.compile(r"-h \| --help|== --help|see the top of this file")
# What is filled in: {name}, $name, ${name}, $(command), %s
FILLED_IN = re.compile(r"\{[^}]*\}|\$\w+|\$\{[^}]*\}|\$\([^)]*\)|%(?:\([^)]*\))?[-\d.]*\w|\\[nt]")
WORD = re.compile(r"(?<![\w./-])[A-Za-z][A-Za-z'-]*(?![\w/=])")


def main() -> None:
    """Print the messages of the files that are named, or of all."""
    for path in [Path(name).resolve() for name in sys.argv[1:]] or source_files():
        messages = list(messages_of(path))
        if messages:
            print(f"== {path.relative_to(REPOSITORY)}", *messages, "", sep="\n")


def source_files() -> list[Path]:
    """Return the files that have messages, in the order of their names."""
    folders = [REPOSITORY / name for name in ("cluster_options", "hooks", "templates", PROJECT.name)]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES]
    return sorted(path for path in files if PROJECT / "tests" not in path.parents)


def messages_of(path: Path) -> Iterator[str]:
    """Yield the messages of a file, each in one line, in the order of the file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from python_messages(text)
    elif path.name.startswith("env."):
        yield from paragraphs(comment_lines(text))
    else:
        yield from bash_messages(text)


def count_words(text: str) -> int:
    """Return the number of words of a text: options, file names and what is filled in are none."""
    return len(WORD.findall(FILLED_IN.sub(" ", text)))


def in_one_line(text: str) -> str:
    """Return a text without its line breaks and indentation."""
    return " ".join(text.split())


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield paragraphs, each in one line; indented lines are examples or tables, and stay lines of their own."""
    paragraph = ""
    for line in [*lines, ""]:
        if paragraph and (not line or line.startswith("  ")):
            yield in_one_line(paragraph)
            paragraph = ""
        if line.startswith("  "):
            yield in_one_line(line)
        else:
            paragraph += " " + line if line else ""


# ---- Python ----------------------------------------------------------------------------------------------------------


def python_messages(text: str) -> Iterator[str]:
    """Yield the messages of a Python file."""
    tree = ast.parse(text)
    usage = ast.get_docstring(tree) or ""
    if "__doc__.splitlines()[0]" in text:
        usage = usage.splitlines()[0]
    if re.search(r"(?<![.\w])__doc__", text):
        yield from paragraphs(usage.splitlines())
    for name in re.findall(r"\b(\w+)\.__doc__", text):  # as main.__doc__
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
        yield from (in_one_line(ast.get_docstring(function) or "") for function in functions)
    yield from messages_below(tree, least=3)


def messages_below(node: ast.AST, least: int) -> Iterator[str]:
    """Yield the messages in a part of a program, of so many words at least."""
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        text = text_of(node)
        if count_words(text) >= least and not PATTERN.search(text):
            yield in_one_line(text)
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in SILENT_FUNCTIONS:
            return
        least = 1 if name in SPEAKERS else 3
    if isinstance(node, ast.keyword):
        if node.arg in SILENT_ARGUMENTS:
            return
        least = 1 if node.arg in HELP_ARGUMENTS else 3
    for child in ast.iter_child_nodes(node):
        yield from messages_below(child, least)


def text_of(node: ast.Constant | ast.JoinedStr) -> str:
    """Return a text with {expression} where the program fills something in; '' for a constant that is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(
        f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else text_of(part)
        for part in node.values
    )


# ---- bash ------------------------------------------------------------------------------------------------------------


def bash_messages(text: str) -> Iterator[str]:
    """Yield the messages of a script of bash: its usage, if it prints it or refers to it, then what it says."""
    if PRINTS_USAGE.search(text):
        header = re.match(r"(?:#.*\n)+", text.partition("#SBATCH {{")[0])
        yield from paragraphs(comment_lines(header.group()))
    code = re.sub(r"(?m)^\s*#.*\n", "", text)
    for found in SPOKEN.finditer(code):
        message = arguments(code[found.end() :])
        if count_words(message) >= 2:
            yield message


def arguments(code: str) -> str:
    """Return the arguments of a command, in one line and without quotes: what comes before an operator or a newline."""
    said, quote, depth, position = "", "", 0, 0
    while position < len(code):
        character = code[position]
        if code.startswith("\\\n", position):
            said, position = said + " ", position + 1
        elif character == "\\" and quote != "'":
            position += 1
            said += code[position]
        elif code.startswith("$(", position) and quote != "'":
            depth, position, said = depth + 1, position + 1, said + "$("
        elif depth:  # a command whose output is filled in
            depth += {"(": 1, ")": -1}.get(character, 0)
            said += character
        elif character == quote:
            quote = ""
        elif not quote and character in "\"'":
            quote = character
        elif not quote and (character in "\n;|&)>" or code.startswith(" #", position)):
            break
        else:
            said += character
        position += 1
    return in_one_line(said)


def comment_lines(text: str) -> Iterator[str]:
    """Yield the lines of comments without their #, and an empty line for each other line."""
    for line in text.splitlines():
        comment = re.match(r"\s*# (?!----|shellcheck)(.*)", line)
        yield comment.group(1).rstrip() if comment else ""


if __name__ == "__main__":
    main()
