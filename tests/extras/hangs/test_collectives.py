"""Which rank do the others wait for? extras/hangs/group.py, on the collectives that ranks and torch tell of."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys

from baking import TEMPLATE

GROUP = TEMPLATE / "extras/hangs/group.py"
VERDICT = re.compile(r"^ranks? \S+( on .*)? ha(s|ve) |disagree|^all ranks")


def call(number, kind="all_reduce", group="gloo 0", tensors="[4] float32", age=60.0, **more):
    told = {"group": group, "group_name": "", "number": number, "kind": kind, "since": 0.0, "age": age, "ranks": ""}
    told |= {"tensors": tensors, "amount": tensors, "finished": False, "failed": False, "frames": []}
    return {**told, **more}


def verdicts_on(calls_of, world_size=4):
    """The lines that group.py adds for ranks with these collectives."""
    answers = ""
    for rank, calls in calls_of.items():
        answers += f"== rank={rank} of={world_size} host=n{rank // 2} pid=7 parent=1 state=S wchan=0 name=python3\n"
        answers += "".join(f"collective {json.dumps(each)}\n" for each in calls) + "end of collectives of gloo\n"
    done = subprocess.run(
        [sys.executable, "-B", GROUP], input=answers, env={"TZ": "UTC"}, capture_output=True, text=True, check=False
    )
    return [line for line in done.stdout.splitlines() if VERDICT.search(line)]


def finished(*numbers):
    return [call(number, finished=True) for number in numbers]


def test_a_rank_that_is_behind_is_named():
    waits = [*finished(3), call(4)]
    assert verdicts_on({0: waits, 1: finished(2, 3), 2: waits, 3: waits}) == [
        "rank 1 on n0 has not entered all_reduce number 4, in which ranks 0,2-3 have waited since 00:00:00"
    ]
    assert verdicts_on({0: [call(1)], 1: [], 2: [call(1)], 3: []}) == [
        "ranks 1,3 on 2 nodes have not entered all_reduce number 1, in which ranks 0,2 have waited since 00:00:00"
    ]


def test_ranks_that_wait_for_a_moment_are_healthy():
    waits = [call(4, age=0.5)]
    assert verdicts_on({0: waits, 1: finished(3), 2: waits, 3: finished(3)}) == []
    assert verdicts_on({rank: finished(3, 4) for rank in range(4)}) == []


def test_ranks_that_call_different_things_are_named():
    usual, other = [*finished(6), call(7)], [*finished(6), call(7, "all_gather", tensors="[2] float32")]
    assert verdicts_on({0: usual, 1: usual, 2: other, 3: usual}) == [
        "ranks disagree: number 7 is all_reduce of [4] float32 on ranks 0-1,3 and all_gather of [2] float32 on rank 2"
    ]
    longer = [*finished(6), call(7, tensors="[5] float32")]
    assert verdicts_on({0: usual, 1: usual, 2: usual, 3: longer}) == [
        "ranks disagree: number 7 is all_reduce of [4] float32 on ranks 0-2 and all_reduce of [5] float32 on rank 3"
    ]


def test_ranks_that_tell_nothing_are_named():
    waits = [call(4)]
    said = "rank 3 has no process any more, and ranks 0-2 have waited in all_reduce number 4 since 00:00:00"
    assert verdicts_on({0: waits, 1: waits, 2: waits}) == [said]
    assert verdicts_on({rank: waits for rank in range(4)}) == [
        "all ranks have entered all_reduce number 4, and have waited in it since 00:00:00: look at the network"
    ]


def test_a_rank_that_waits_itself_comes_second():
    """Rank 1 keeps all others waiting, as it waits for rank 3 in a group of these two."""
    pair = {"group": "gloo 2", "group_name": "tp"}
    all_wait = [call(9)]
    said = verdicts_on(
        {
            0: all_wait,
            1: [*finished(8), call(5, **pair)],
            2: all_wait,
            3: [*finished(8), call(4, finished=True, **pair)],
        }
    )
    assert said == [
        "rank 3 on n1 has not entered all_reduce number 5 of the group tp, in which rank 1 has waited since 00:00:00",
        "ranks 1,3 on 2 nodes have not entered all_reduce number 9, in which ranks 0,2 have waited since 00:00:00",
    ]


def test_a_rank_whose_record_is_older_than_the_wait_is_not_blamed():
    """It has answered before the others began to wait, and may be far ahead by now."""
    late = [call(50, since=100.0, age=2.0)]
    assert verdicts_on({0: late, 1: [call(20, finished=True, since=90.0, age=1.0)], 2: late, 3: late}) == []


def test_a_rank_that_comes_at_this_moment_is_the_one_that_was_missing():
    waits = [call(12)]
    said = "rank 1 on n0 has not entered all_reduce number 12, in which ranks 0,2-3 have waited since 00:00:00"
    assert verdicts_on({0: waits, 1: [call(11, age=0.01, since=60.0)], 2: waits, 3: waits}) == [said]


def test_tensors_of_another_shape_with_as_many_elements_are_the_same():
    flat, square = call(4, tensors="[4] float32"), {**call(4, tensors="[2, 2] float32"), "amount": "[4] float32"}
    said = "rank 3 has no process any more, and ranks 0-2 have waited in all_reduce number 4 since 00:00:00"
    assert verdicts_on({0: [flat], 1: [square], 2: [flat]}) == [said]


def test_a_torn_answer_proves_nothing():
    """srun may break a line that is too long."""
    answers = ""
    for rank in range(3):
        answers += f"== rank={rank} of=3 host=n pid={rank} parent=1 state=S wchan=0 name=python3\n"
        line = f"collective {json.dumps(call(5))}\n"
        answers += (line[:50] + "\n" + line[50:] if rank == 1 else line) + "end of collectives of gloo\n"
    done = subprocess.run([sys.executable, "-B", GROUP], input=answers, capture_output=True, text=True, check=False)
    assert "\nrank 1 on n has told nothing, and ranks 0,2 have waited in all_reduce number 5" in done.stdout, (
        done.stdout
    )


def test_a_group_that_was_made_anew_counts_from_the_beginning():
    """The recorder still has the calls of the one before, whose numbers are higher."""
    program = f"""\
import sys
sys.path.insert(0, {str(TEMPLATE / "extras/hangs/python")!r})
sys.dont_write_bytecode = True
import json, rank_collectives
entries = json.loads(sys.argv[1])
print(*rank_collectives.lines_of({{"entries": entries}}, "nccl", {{}}), sep="\\n")
"""
    numbers = [1, 2, 3, 1, 2]
    entries = [{**nccl_entry(number, "completed"), "record_id": at} for at, number in enumerate(numbers)]
    command = [sys.executable, "-c", program, json.dumps(entries)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [json.loads(line.partition(" ")[2])["number"] for line in lines] == [1, 2]


def nccl_entry(number, state, **more):
    frames = [("/x/site-packages/torch/distributed/distributed_c10d.py", "all_reduce", 3), ("/p/train.py", "step", 41)]
    return {
        "record_id": number,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce",
        "is_p2p": False,
        "state": state,
        "retired": state == "completed",
        "time_created_ns": 0,
        "input_sizes": [[4, 2]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4, 2]],
        "output_dtypes": ["BFloat16"],
        "frames": [{"filename": file, "name": name, "line": line} for file, name, line in frames],
        **more,
    }


class MakesFolder:
    """A pickle of it makes a folder as soon as it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_what_nccl_has_written_is_read(tmp_path):
    """torch writes such a file per rank when a collective times out. A torn one, or one that runs code, is no harm."""
    for rank, states in enumerate((["completed", "started"], ["completed"], ["completed", "scheduled"])):
        entries = [nccl_entry(number, state) for number, state in enumerate(states, start=1)]
        groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3, 4]"}}
        (tmp_path / f"nccl-rank-{rank}").write_bytes(
            pickle.dumps({"entries": entries, "pg_config": groups}, protocol=2)
        )
    (tmp_path / "nccl-rank-3").write_bytes(pickle.dumps(MakesFolder(str(tmp_path / "made")), protocol=2))
    (tmp_path / "nccl-rank-4").write_bytes(pickle.dumps({"entries": []}, protocol=2)[:-2])
    command = [sys.executable, "-B", GROUP, tmp_path]
    done = subprocess.run(command, env={"TZ": "UTC"}, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "ranks 0,2: waited in all_reduce(), called from /p/train.py:41 in step()",
        "rank 1: last seen in all_reduce(), called from /p/train.py:41 in step()",
        "ranks 3-4: left no record",
        "rank 1 has not entered all_reduce number 2, in which ranks 0,2 have waited since 00:00:00",
    ], done.stderr
    assert not (tmp_path / "made").exists()


def variables_of(tmp_path, version, **environment):
    """The variables of the flight recorder in a rank with this torch."""
    (tmp_path / "torch").mkdir(exist_ok=True)
    (tmp_path / "torch/__init__.py").write_text("")
    (tmp_path / "torch/version.py").write_text(f"from typing import Optional\n__version__ = '{version}'\n")
    path = f"{TEMPLATE / 'extras/hangs/python'}:{tmp_path}"
    environment = {
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "RANK": "3",
        "RUN_DIR": str(tmp_path),
        **environment,
    }
    program = "import os; print(*sorted(f'{n}={v}' for n, v in os.environ.items() if n.startswith('TORCH_')))"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


def test_the_flight_recorder_writes_into_the_folder_of_the_run(tmp_path):
    file = f"{tmp_path}/nccl-rank-"
    for version in ("2.13.0+cpu", "2.8.0"):
        assert variables_of(tmp_path, version) == [
            "TORCH_FR_BUFFER_SIZE=2000",
            f"TORCH_FR_DUMP_TEMP_FILE={file}",
            "TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        ]
    assert variables_of(tmp_path, "2.7.1") == [
        f"TORCH_NCCL_DEBUG_INFO_TEMP_FILE={file}",
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    ]
    own = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_DUMP_TEMP_FILE": "/x", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    assert variables_of(tmp_path, "2.13.0", **own) == sorted(f"{name}={value}" for name, value in own.items())


def test_a_restarted_rank_forgets_how_it_failed(tmp_path):
    """But not a process that it starts, which inherits its variables."""
    for name in ("nccl-rank-3", "collectives-rank-3", "collectives-rank-4", "stacks.txt"):
        (tmp_path / name).write_text("")
    variables_of(tmp_path, "2.13.0", RANK_PID="1")
    assert (tmp_path / "collectives-rank-3").exists()
    variables_of(tmp_path, "2.13.0")
    left = {path.name for path in tmp_path.iterdir()} - {"torch"}
    assert left == {"collectives-rank-4", "stacks.txt"}  # stacks.txt goes with rank 0
