"""The images of the stand-ins `shifter` and `shifterimg`: a folder that all nodes share, $STAND_IN_GATEWAY."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from stand_in import fail, read_image


def gateway() -> Path:
    path = os.environ.get("STAND_IN_GATEWAY") or fail("ERROR: failed to contact the image gateway. (STAND_IN_GATEWAY)")
    Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


def describe(text: str) -> tuple[str, str]:
    """Type and name of an image: parse_ImageDescriptor of src/ImageData.c, with docker as the default type."""
    kind, _, tag = text.partition(":")
    if kind not in ("docker", "custom", "id", "local"):
        kind, tag = "docker", text
    slash = "/" if kind in ("docker", "local") else ""  # imageDesc_filterString
    return kind, re.sub(rf"[^A-Za-z0-9_:.+@{slash}-]", "", tag)


def record(kind: str, tag: str) -> Path:
    """Where an image is kept, by its identifier; without a tag it is latest, which `shifterimg` adds."""
    if kind == "id":  # lookup_ImageIdentifier of src/ImageData.c: it is the identifier already
        return gateway() / f"{tag}.json"
    tag = tag if ":" in tag else f"{tag}:latest"
    return gateway() / f"{hashlib.sha256(f'{kind}:{tag}'.encode()).hexdigest()}.json"


def find(kind: str, tag: str) -> dict | None:
    path = record(kind, tag)
    return read_image(path) if path.exists() else None
