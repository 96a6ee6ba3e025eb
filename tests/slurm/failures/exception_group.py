"""Rank 2: several exceptions at once, as asyncio.TaskGroup raises them (Python 3.11)."""

import asyncio
import os
import time

import startup


async def read(shard):
    await asyncio.sleep(0.1)
    if shard == 3:
        raise ValueError("shard 3 has no header")


async def read_all():
    async with asyncio.TaskGroup() as group:
        for shard in range(5):
            group.create_task(read(shard))


if os.environ["RANK"] == "2":
    asyncio.run(read_all())
time.sleep(600)
