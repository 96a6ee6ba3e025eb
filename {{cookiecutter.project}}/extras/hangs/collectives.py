"""Says in words which rank keeps the others waiting in a collective, from the records of python/rank_collectives.py.

All ranks of a group give its collectives the same numbers: 1, 2, 3 … So of ranks that wait in number 12, one that has
come to number 11 keeps the others waiting; and ranks that called different things as number 12 wait for each other.
Operations between two ranks, as send and recv, have no such numbers, and are left out.
"""

import time

LEAST_WAIT = 1.0  # seconds; a rank that has been in a collective for less does not count as waiting
# In these the tensors have to be the same on all ranks. In others, as all_to_all, they may differ.
SAME_TENSORS = {"all_reduce", "broadcast", "reduce", "reduce_scatter", "reduce_scatter_base", "all_gather_base"}


def verdicts(calls_of, told, hosts, world_size, live=True):
    """Return a sentence for each group of ranks that waits. Those come last whose missing ranks wait in another group.

    The first three have an entry for each rank.
    calls_of: its newest collectives, as rank_collectives.lines_of() makes them, in the order of the calls.
    told: the backends, as gloo, of which these are complete.
    hosts: its host, if it has a process.
    live: whether the ranks were asked while they ran. Else they have left records, and one without is not known to have
        ended.
    """
    found, waiting = [], {}
    for group in sorted({call["group"] for calls in calls_of.values() for call in calls}):
        calls = {rank: {call["number"]: call for call in calls_of[rank] if call["group"] == group} for rank in calls_of}
        ranks = set(range(world_size)) if has_all_ranks(group) and world_size else ranks_of_group(calls)
        members = {rank: calls[rank] for rank in sorted(ranks & set(calls)) if group.split()[0] in told[rank]}
        unfinished = {rank: oldest_unfinished(members[rank].values()) for rank in members}
        waits = {
            rank: call for rank, call in unfinished.items() if call and (call["failed"] or call["age"] >= LEAST_WAIT)
        }
        if waits:
            unknown = sorted(ranks - set(members))
            verdict = disagreement(members) or absence(members, waits, unknown, hosts, live)
            waiting[group] = set(waits)
            found += [(group, *verdict)] if verdict else []

    def is_missing_a_rank_that_waits_elsewhere(verdict):
        group, ranks, _ = verdict
        return any(set(ranks) & waiting[other] for other in waiting if other != group)

    return [sentence for _, _, sentence in sorted(found, key=is_missing_a_rank_that_waits_elsewhere)]


def has_all_ranks(group):
    """Tell whether a group, as "gloo 0", is the default one, of all ranks: torch names it 0."""
    return group.endswith(" 0")


def ranks_of_group(calls):
    """Return the ranks of a group: as rank_collectives.as_range() has them, and those with a collective of it."""
    with_calls = {rank for rank in calls if calls[rank]}
    texts = [call["ranks"] for rank in sorted(with_calls) for call in calls[rank].values()]
    text = next(filter(None, texts), "")  # of a group that a rank has left nothing is known
    if " " in text:  # FIRST LAST STEP
        first, last, step = map(int, text.split())
        return set(range(first, last + 1, step))
    return with_calls | {int(rank) for rank in text.split(",") if rank}


def oldest_unfinished(calls):
    """Return the first of a rank's collectives that has not ended well, or None."""
    return next((call for call in calls if not call["finished"]), None)


def disagreement(members):
    """Return the ranks that called something else under the same number than others, and say so; None if they agree.

    Only numbers that somebody waits in are looked at.
    """
    for number in sorted({number for calls in members.values() for number in calls}):
        calls = {rank: members[rank][number] for rank in members if number in members[rank]}
        ranks_of = {}
        for rank, call in calls.items():
            kind = call["kind"]
            ranks_of.setdefault((kind, call["amount"] if kind in SAME_TENSORS else ""), []).append(rank)
        if len(ranks_of) > 1 and oldest_unfinished(calls.values()):
            most_first = sorted(ranks_of.values(), key=lambda ranks: -len(ranks))
            said = " and ".join(f"{described(calls[ranks[0]])} on {named(ranks)}" for ranks in most_first)
            return most_first[-1], f"ranks disagree: {number_of(calls[most_first[0][0]])} is {said}"
    return None


def absence(members, waits, unknown, hosts, live):
    """Return the ranks that the others wait for, and say so: those that are behind, else those that told nothing.

    None if that cannot be told: a rank that answered before the others began to wait may be far ahead by now.
    """
    number = min(call["number"] for call in waits.values())
    waits = {rank: call for rank, call in waits.items() if call["number"] == number}
    begin = min(call["since"] for call in waits.values())
    since = time.strftime("%H:%M:%S", time.localtime(begin))
    where, waited = numbered(next(iter(waits.values()))), f"{named(waits)} {has(waits)} waited"
    behind = [rank for rank in members if max(members[rank], default=0) < number]
    if any(call["since"] + call["age"] < begin for rank in behind for call in members[rank].values()):
        return None
    if behind:
        return behind, f"{named(behind, hosts)} {has(behind)} not entered {where}, in which {waited} since {since}"
    if unknown:
        has_process = set(hosts) & set(unknown)
        gone = "no process any more" if live else "left no record"
        told = "told nothing" if has_process == set(unknown) else gone if not has_process else "told nothing, or ended"
        return unknown, f"{named(unknown, hosts)} {has(unknown)} {told}, and {waited} in {where} since {since}"
    if set(waits) == set(members):
        look = "the GPUs and the network" if numbered_by_nccl(waits) else "the network"
        return [], f"all ranks have entered {where}, and have waited in it since {since}: look at {look}"
    return None


def numbered_by_nccl(calls):
    """Tell whether calls are NCCL's: a rank may have entered one while its GPU has not."""
    return all(call["group"].startswith("nccl") for call in calls.values())


def described(call):
    """Return what was called, as 'all_reduce of [1024] float32'."""
    return call["kind"] + (f" of {call['tensors']}" if call["tensors"] else "")


def numbered(call):
    """Return 'all_reduce number 12', with the name of the group if that is not the default one."""
    return f"{call['kind']} {number_of(call)}"


def number_of(call):
    """Return 'number 12', with the name of the group if that is not the default one."""
    group = "" if has_all_ranks(call["group"]) else f" of the group {call['group_name'] or call['group'].split()[-1]}"
    return f"number {call['number']}{group}"


def has(ranks):
    """Return 'has' or 'have'."""
    return "has" if len(ranks) == 1 else "have"


def named(ranks, hosts=None):
    """Return 'ranks 0-3,7'; where all their hosts are known, with those: 'rank 1 on node2', 'ranks 0-3 on 2 nodes'."""
    words = f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"
    names = sorted({hosts.get(rank, "") for rank in ranks}) if hosts else [""]
    if not all(names):
        return words
    return f"{words} on {names[0]}" if len(names) == 1 else f"{words} on {len(names)} nodes"


def ranges(numbers):
    """Return numbers as 0-3,7."""
    parts = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
