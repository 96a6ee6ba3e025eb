"""Rank 0: what NCCL's watchdog prints. Only the wording is real: the tests have no GPU."""

import os
import time

import startup

WORDS = """\
[rank0]:[E1121 18:21:02.403 ProcessGroupNCCL.cpp:688] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=211, OpType=ALLREDUCE, NumelIn=25165824, NumelOut=25165824, Timeout(ms)=600000) ran for 600014 \
milliseconds before timing out.
[rank0]:[E1121 18:21:02.404 ProcessGroupNCCL.cpp:744] [Rank 0] To avoid data inconsistency, we are taking the entire \
process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception
"""
time.sleep(1)
if os.environ["RANK"] == "0":
    os.write(2, WORDS.encode())
    os.abort()
time.sleep(600)
