"""Prints what torch's flight recorder holds of a rank's collectives, as lines that extras/hangs/group.py reads.

The recorder keeps of each collective its number, its kind and its tensors. Within a process group the collective of a
number is the same on all ranks. So a rank that skipped one, or called another one, can be told from those that wait.

  collective {"group": "gloo 0", "number": 12, "kind": "all_reduce", "tensors": "[1024] float32", "finished": false, …}

  prepare()           runs when the rank starts (rank_stacks.py)
  answer()            in a thread of the rank, when it is asked
  tell_of_failure()   when the rank ends
  lines_of()          also for what NCCL's recorder has written to a file (../records.py), with Python 3.6

The recorder is there for NCCL, and since torch 2.8 for gloo (pytorch/pytorch #152563; read 2026-11-23). NCCL's is not
read while a rank runs: it asks the GPU for events, which a program that captures a CUDA graph may not survive.
"""

import os
import sys
import time

# Each Python process of a rank imports this file: what takes long to import is imported in the functions that need it.

NEWEST, UNFINISHED = 8, 8  # of each group, print so many collectives: the newest, and the oldest that are not over
MOST_RANKS = 40  # list the ranks of a group one by one up to so many: srun breaks lines after a thousand characters
PATIENCE = 60  # seconds that a rank whose collective failed lives on, for hooks.sh to ask all ranks
END = "end of collectives of"  # the last line of an answer begins so, and names the backends
# Words in the error of a rank that has waited for another one in vain, or has lost it …
NO_PEER = ("Timed out", "timed out", "timeout", "Connection closed", "Connection reset", "Broken pipe")
# … in a collective: other errors may have these words, too.
COMMUNICATION = ("gloo", "NCCL", "c10d", "pair closure")
NOT_RECORDED = {"send", "recv", "monitored_barrier"}  # gloo's recorder does not have these functions
# torch's names of types, as the recorder has them.
TYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Long": "int64", "Int": "int32", "Short": "int16"}
TYPES.update({"Char": "int8", "Byte": "uint8"})


# ---- when the rank starts --------------------------------------------------------------------------------------------


def prepare():
    """Have NCCL's recorder write into RUN_DIR when a collective times out. Variables that are set stay as they are."""
    os.environ.setdefault("RANK_PID", str(os.getpid()))
    if not is_rank_itself() or not os.environ.get("RUN_DIR"):
        return
    delete_reports_of_earlier_start()
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    # torch 2.8 has renamed these, and warns if an old name is set, even beside the new one.
    old = torch_version() < (2, 8)
    if not {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"} & set(os.environ):
        os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE" if old else "TORCH_FR_BUFFER_SIZE"] = "2000"
    if not {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"} & set(os.environ):
        name = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" if old else "TORCH_FR_DUMP_TEMP_FILE"
        os.environ[name] = file_of_run("nccl-rank-")  # torch adds the rank


def is_rank_itself():
    """Tell whether this process is the rank, and none that it has started and that has inherited its variables."""
    return os.environ.get("RANK_PID") == str(os.getpid())


def delete_reports_of_earlier_start():
    """Delete what this rank has left in RUN_DIR before its launcher restarted it."""
    rank = os.environ.get("RANK")
    of_all_ranks = ["timeout", "stacks.txt"] if rank == "0" else []
    for name in [f"nccl-rank-{rank}", f"collectives-rank-{rank}", *of_all_ranks]:
        try:
            os.unlink(file_of_run(name))
        except OSError:  # mostly there is none
            continue


def file_of_run(name):
    """Return the path of a file in RUN_DIR."""
    return os.path.join(os.environ["RUN_DIR"], name)


def torch_version():
    """Return torch's version, for example (2, 13), without importing torch; (0, 0) if there is none."""
    files = [os.path.join(folder, "torch/version.py") for folder in sys.path]
    file = next(filter(os.path.exists, files), os.devnull)
    with open(file, encoding="utf-8") as lines:
        version = next((line for line in lines if line.startswith("__version__")), "0 0")
    numbers = "".join(character if character.isdigit() else " " for character in version).split()
    return tuple(int(number) for number in numbers[:2])


# ---- when the rank is asked, or ends ---------------------------------------------------------------------------------


def answer():
    """Return the lines of this rank: where it has failed, if it has, and its newest collectives."""
    lines, told, module = failure_lines(), [], getattr(sys.modules.get("torch"), "_C", None)
    dump = getattr(getattr(module, "_distributed_c10d", None), "_dump_fr_trace", None)
    if dump:
        import pickle

        # With stacks, torch would import its compiler, 800 modules (torch 2.13): only if that has happened already.
        with_stacks = "torch._inductor.codecache" in sys.modules
        try:
            trace = pickle.loads(dump(True, with_stacks, False))
            lines += lines_of(trace, "gloo", ranks_of_groups(), newest_failed=has_failed_in_gloo())
            told = ["gloo"]
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError) as error:
            lines.append(f"the flight recorder cannot be read: {error!r}")
    return "\n".join(["", *lines, " ".join([END, *told]), ""])


def ranks_of_groups():
    """Return the ranks of each process group by the group's name, which gloo's recorder does not have."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    names, ranks = getattr(world, "pg_names", {}), getattr(world, "pg_group_ranks", {})
    return {name: sorted(ranks[group]) for group, name in list(names.items()) if group in ranks}


def failed_collective():
    """Return the exception with which this rank ends, if it has waited for another one in vain, or lost it; or None."""
    error = getattr(sys, "last_value", None)  # Python sets it before it prints the traceback
    if not isinstance(error, RuntimeError) or not any(words in str(error) for words in NO_PEER):
        return None
    in_torch = "/torch/distributed/" in frames_of(error)[0][0].f_code.co_filename
    return error if in_torch or any(words in str(error) for words in COMMUNICATION) else None


def has_failed_in_gloo():
    """Tell whether the newest of gloo's collectives is the one that has failed."""
    error = failed_collective()
    if not error or not any(words in str(error) for words in ("gloo", "pair closure")):
        return False
    return not NOT_RECORDED & {frame.f_code.co_name for frame, _ in frames_of(error)}


def frames_of(error):
    """Return frames and lines of the traceback of an exception that was raised, the innermost first."""
    found, trace = [], error.__traceback__
    while trace:
        found.insert(0, (trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return found


def failure_lines():
    """Return lines like faulthandler's, of the place where this rank has failed; none if it has not."""
    error = failed_collective()
    if not error:
        return []
    codes = [(frame.f_code, line) for frame, line in frames_of(error)]
    return ["failed", *(f'  File "{code.co_filename}", line {line} in {code.co_name}' for code, line in codes)]


def tell_of_failure():
    """If this rank ends because another one did not come: write its collectives, and have all ranks asked.

    The launcher ends all ranks as soon as this one has ended. Then nobody could see any more where the others are.
    """
    if not failed_collective() or not is_rank_itself() or not os.environ.get("RUN_DIR"):
        return
    try:
        host = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        report = facts(os.environ["RANK"], os.environ.get("WORLD_SIZE", ""), host) + answer()
        write(file_of_run(f"collectives-rank-{os.environ['RANK']}"), report)
        if "TIMEOUT_FILE" in os.environ:  # hooks.sh asks all ranks then, and writes stacks.txt
            write(os.environ["TIMEOUT_FILE"], "")
            end = time.monotonic() + PATIENCE
            while not os.path.exists(file_of_run("stacks.txt")) and time.monotonic() < end:
                time.sleep(0.2)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"extras/hangs: {error!r}\n")


def write(path, text):
    """Write a file, which others do not see before it is whole."""
    with open(f"{path}.{os.getpid()}", "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    os.replace(file.name, path)


# ---- also where a dump is read, with Python 3.6 ----------------------------------------------------------------------


def facts(rank, world_size, host):
    """Return a line as extras/hangs/collect.sh prints it, of a rank whose process is gone."""
    return f"== rank={rank} of={world_size} host={host} pid=0 parent=0 state=X wchan=0 name=-"


def lines_of(dump, backend, ranks, newest_failed=False):
    """Return a line for each of the newest collectives of a dump of torch's, group by group, in the order of the calls.

    ranks: those of each group, by its name. newest_failed: the newest call has failed, for which gloo's recorder has no
    state.
    """
    import json

    entries = [entry for entry in dump.get("entries", []) if not entry["is_p2p"]]
    failed = entries[-1]["record_id"] if entries and newest_failed else None
    groups = {}
    for entry in entries:
        name, number = entry["process_group"][0], entry["collective_seq_id"]
        if number == 1:  # a group that was made anew counts from the beginning
            groups[name] = {}
        groups.setdefault(name, {}).setdefault(number, entry)  # calls that were made as one have one number
    lines = []
    for name, group in groups.items():
        calls = list(group.values())
        unfinished = [entry for entry in calls if entry["record_id"] == failed or not is_over(entry, backend)]
        shown = {entry["record_id"]: entry for entry in [*unfinished[:UNFINISHED], *calls[-NEWEST:]]}
        for record, entry in sorted(shown.items()):
            call = described(entry, backend)
            members = as_range(sorted(ranks.get(name, [])))
            call.update(finished=entry not in unfinished, failed=record == failed, ranks=members)
            lines.append("collective " + json.dumps(call, ensure_ascii=False))
    return lines


def is_over(entry, backend):
    """Tell whether a collective has ended. gloo's recorder only has that it is no longer under way."""
    return entry["state"] == "completed" or (backend == "gloo" and entry["retired"])


def described(entry, backend):
    """Return most of what group.py wants to know of a collective."""
    name, description = (*entry["process_group"], "")[:2]
    seconds = entry["time_created_ns"] / 1e9
    return {
        "group": f"{backend} {name}",
        "group_name": "" if description in ("default_pg", "undefined") else description[:60],
        "number": entry["collective_seq_id"],
        "kind": entry["profiling_name"].rpartition(":")[2].strip("_"),
        "tensors": tensors(entry)[0],
        "amount": tensors(entry)[1],
        "since": seconds,  # when it was called [seconds since 1970]
        "age": round(time.time() - seconds, 1),  # seconds since then
        "frames": caller(entry),
    }


def tensors(entry):
    """Return the tensors of a call, as '[4, 256] float32', and their numbers of elements, as '1024 float32'."""
    name = entry["profiling_name"]
    side = "output" if "scatter" in name and "reduce" not in name else "input"  # scatter has inputs on one rank alone
    sizes, types = entry[f"{side}_sizes"], [TYPES.get(name, name.lower()) for name in entry[f"{side}_dtypes"]]
    amounts = []
    for size, name in zip(sizes, types):
        elements = 1
        for length in size:
            elements *= length
        amounts.append(f"{elements} {name}")
    if len(sizes) > 2:
        return f"{len(sizes)} tensors of {', '.join(sorted(set(types)))}", f"{len(sizes)}"
    return ", ".join(f"{size} {name}" for size, name in zip(sizes, types)), ", ".join(amounts)


def caller(entry, width=100):
    """Return two frames of a call: the one that called torch, after the frame of torch's function."""
    frames = [(frame["filename"][-width:], frame["line"], frame["name"][:40]) for frame in entry.get("frames", [])]
    own = next((at for at, frame in enumerate(frames) if "/torch/" not in frame[0]), 0)
    return frames[max(0, own - 1) : own + 1]


def as_range(ranks):
    """Return ranks as 'FIRST LAST STEP' if they are evenly spaced; else as '1,3,4' if they are few; else ''."""
    steps = {ranks[at + 1] - ranks[at] for at in range(len(ranks) - 1)}
    if len(steps) == 1:
        return f"{ranks[0]} {ranks[-1]} {steps.pop()}"
    return ",".join(map(str, ranks)) if len(ranks) <= MOST_RANKS else ""
