"""Asks git for the state of a program's sources: the commit, and what was changed since. It changes nothing.

snapshot.py, record.py and repeat.py import it. Python 3.6, standard library only.
"""

import fnmatch
import os
import shutil
import subprocess
import tempfile

LARGEST_NEW_FILE = 1 << 20  # bytes; larger files that git does not track are data, and stay out of the diff
# New files of these names hold keys, as a rule, and stay out of the diff.
OF_KEYS = (".env*", "*.env", "*.pem", "*.key", "*.p12", "id_*", ".netrc", ".pypirc", ".npmrc")

# With core.sparseCheckout git would refuse a new file outside of the folders that are checked out.
INTENT_TO_ADD = ("-c", "core.sparseCheckout=false", "add", "--intent-to-add")


def private(path, flags):
    """Open a file that nobody else can read, as an opener of open()."""
    return os.open(path, flags, 0o600)


class GitError(Exception):
    """git refuses to answer; the message is git's own."""


def git(folder, *arguments, **options):
    """Return the output of a git command in `folder`, as bytes.

    options: further environment variables. Raises GitError with git's message if the command fails.
    """
    # Without optional locks git does not write to the index, in which another git may be at work.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **options}
    command = ["git", "-C", folder, *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        output, errors = running.communicate()
    if running.returncode:
        raise GitError(errors.decode(errors="replace").strip())
    return output


def names(output):
    """Return the file names in the output of git -z."""
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


def repository_of(folder):
    """Return the top folder of the git repository that has `folder`, or None.

    None too if git ignores the folder or tracks nothing in it: then the repository has other sources, as in a home
    directory under git. Raises GitError if git refuses to read the repository, or `folder` lies in .git.
    """
    if not shutil.which("git"):
        return None
    try:
        top = os.fsdecode(git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n"))
    except GitError as error:
        if "not a git repository" in str(error):
            return None
        raise
    top = os.path.realpath(top)
    answer = subprocess.run(["git", "-C", folder, "check-ignore", "-q", "."], stderr=subprocess.DEVNULL, check=False)
    ignores_it = answer.returncode == 0
    owns_it = os.path.realpath(folder) == top or git(folder, "ls-files", "-z", "--", ".") or has_no_commit(top)
    return top if owns_it and not ignores_it else None


def has_no_commit(top):
    """Return whether a repository has no commit yet."""
    try:
        git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    except GitError:
        return True
    return False


def state_of(folder):
    """Return the state of the repository around `folder`, and the diff since its commit as bytes; (None, b"") without.

    The state has these keys:
        repository, branch, clean
        commit                None before the first
        untracked             the names of new files
        left_out              those of them that may hold keys: may_hold_keys() tells
        changed_submodules    submodules in which something is not committed. One at another commit is in the diff
    The diff holds changed files, and new ones up to 1 MiB that git does not ignore and that hold no keys: after
    `git checkout COMMIT && git apply DIFF` the sources are the same, but for those in changed submodules.
    """
    top = repository_of(folder)
    if not top:
        return None, b""
    commit = branch = None
    if not has_no_commit(top):
        commit = git(top, "rev-parse", "HEAD").decode().strip()
        branch = git(top, "rev-parse", "--abbrev-ref", "HEAD").decode().strip()
    new = names(git(top, "ls-files", "-z", "--others", "--exclude-standard"))
    left_out = [name for name in new if may_hold_keys(os.path.join(top, name))]
    diff = diff_of(top, commit, [name for name in new if name not in left_out])
    submodules = changed_submodules(top)
    clean = not diff and not new and not submodules
    state = {"repository": top, "commit": commit, "branch": branch, "clean": clean, "untracked": new}
    return {**state, "left_out": left_out, "changed_submodules": submodules}, diff


def changed_submodules(top):
    """Return the names of the submodules in which a file is changed, or new, since the submodule's own commit."""
    entries = git(top, "ls-files", "-z", "--stage").split(b"\0")
    submodules = [os.fsdecode(entry.split(b"\t", 1)[1]) for entry in entries if entry.startswith(b"160000 ")]
    fetched = [name for name in submodules if os.path.exists(os.path.join(top, name, ".git"))]
    question = ["status", "--porcelain", "--untracked-files=normal"]
    return [name for name in fetched if git(os.path.join(top, name), *question)]


def diff_of(top, commit, new):
    """Return the diff from a commit to the files as they are, with the new files up to 1 MiB."""
    small = [name for name in new if is_small_file(os.path.join(top, name))]
    with tempfile.TemporaryDirectory() as folder:
        # `git diff` shows new files that the index names. So they are added to a copy of the index.
        index = os.path.join(folder, "index")
        live = os.path.join(top, os.fsdecode(git(top, "rev-parse", "--git-path", "index").rstrip(b"\n")))
        if os.path.exists(live):
            shutil.copy2(live, index)  # with its time, from which git tells whether a file was edited just after
        # `git add` writes an empty file into the folder of objects, which may be read-only. So it gets the temporary
        # folder, and the repository's own objects as alternates.
        objects = os.path.join(top, os.fsdecode(git(top, "rev-parse", "--git-path", "objects").rstrip(b"\n")))
        quoted = '"' + objects.replace("\\", "\\\\").replace('"', '\\"') + '"'
        new_objects = {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted}
        for begin in range(0, len(small), 500):  # a command line takes no more than some megabytes
            batch = small[begin : begin + 500]
            git(top, *INTENT_TO_ADD, "--", *batch, GIT_INDEX_FILE=index, GIT_LITERAL_PATHSPECS="1", **new_objects)
        since = commit or git(top, "hash-object", "-t", "tree", os.devnull).decode().strip()  # the empty tree
        # Whatever the user's own configuration says, `git apply` has to read the diff.
        plain = ["--unified=3", "--inter-hunk-context=0", "--no-color", "--no-ext-diff", "--no-textconv"]
        plain += ["--src-prefix=a/", "--dst-prefix=b/", "--submodule=short", "--ignore-submodules=dirty"]
        return git(top, "diff", "--binary", *plain, since, GIT_INDEX_FILE=index)


def may_hold_keys(path):
    """Return whether a file has a name of OF_KEYS, or was made unreadable for others.

    Files of a user with umask 077 are unreadable for others unless they were made readable: these are told by name.
    """
    if any(fnmatch.fnmatchcase(os.path.basename(path), pattern) for pattern in OF_KEYS):
        return True
    umask = os.umask(0o077)
    os.umask(umask)
    return os.path.isfile(path) and not os.stat(path).st_mode & 0o077 and umask & 0o077 != 0o077


def is_small_file(path):
    """Return whether a path is a file, or a link, of at most 1 MiB; not a repository within this one."""
    return not path.endswith("/") and os.path.lexists(path) and os.lstat(path).st_size <= LARGEST_NEW_FILE
