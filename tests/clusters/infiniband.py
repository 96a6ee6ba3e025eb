"""What a node's /sys/class/infiniband says of its network devices, and the addresses that tests let it say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

LINK_LOCAL = "fe80:0000:0000:0000:0e42:a1ff:fe00:0001"
OF_IPV4 = "0000:0000:0000:0000:0000:ffff:ac12:8003"
V1, V2 = "IB/RoCE v1", "RoCE v2"
# What one network interface with an IPv4 address brings: an entry of each type for each of its addresses.
PAIR = [(LINK_LOCAL, V1), (LINK_LOCAL, V2), (OF_IPV4, V1), (OF_IPV4, V2)]
UP, DOWN = "4: ACTIVE", "1: DOWN"


def write_infiniband(top: Path, devices: Mapping) -> None:
    """Write devices into the folder `top`, as the kernel lays them out.

    {device: {port: {"link_layer": …, "state": …, "gids": [(gid, type), …]}}}; a type that is None cannot be read.
    """
    for device, ports in devices.items():
        for number, port in ports.items():
            write_port(top / device / "ports" / str(number), **port)


def write_port(folder: Path, link_layer: str = "Ethernet", state: str = UP, gids=()) -> None:
    """Write the files of one port."""
    for name in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "link_layer").write_text(f"{link_layer}\n")
    (folder / "state").write_text(f"{state}\n")
    for index, (gid, kind) in enumerate(gids):
        (folder / f"gids/{index}").write_text(f"{gid}\n")
        if kind is None:  # EINVAL in a real pod, EISDIR here
            (folder / f"gid_attrs/types/{index}").mkdir(exist_ok=True)
        else:
            (folder / f"gid_attrs/types/{index}").write_text(f"{kind}\n")
            (folder / f"gid_attrs/ndevs/{index}").write_text("net1\n")
