"""What a spool's folder is for: a small file beside it, so that other spellings find it.

A folder is named for the spelling of the servers, which is all that a client knows before Kafka
answers. Its label has this spelling, and the cluster's id once a client of the folder has learned
it. A client that knows its cluster's id takes over dead processes of all folders with the same id.
Clusters that share an id, as copies of one configuration may, count as one.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class FolderLabel(NamedTuple):
    """The content of a label.

    Attributes:
        bootstrap_servers: The servers as the folder's last client named them.
        topic_prefix: The prefix of the topics.
        cluster_id: The cluster's id; None if no client of the folder has reached Kafka.
    """

    bootstrap_servers: str
    topic_prefix: str
    cluster_id: str | None


def label_path(folder: Path) -> Path:
    """Return the place of a folder's label."""
    return folder.with_name(f"{folder.name}.json")


def read_label(folder: Path) -> FolderLabel | None:
    """Return a folder's label; None if there is none that can be read."""
    try:
        fields = json.loads(label_path(folder).read_bytes())
        cluster_id = fields["cluster_id"]
        return FolderLabel(
            f"{fields['bootstrap_servers']}",
            f"{fields['topic_prefix']}",
            None if cluster_id is None else f"{cluster_id}",
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_label(folder: Path, label: FolderLabel) -> None:
    """Write a folder's label, unless it cannot be written: it is of use, and not needed."""
    path = label_path(folder)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with suppress(OSError):
        try:
            temporary.write_text(json.dumps(label._asdict()) + "\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def label_folder(folder: Path, bootstrap_servers: str, topic_prefix: str, cluster_id: str | None = None) -> None:
    """Note what a folder is for. A known cluster's id stays until another one is learned."""
    known = read_label(folder)
    if cluster_id is None and known is not None:
        cluster_id = known.cluster_id
    label = FolderLabel(bootstrap_servers, topic_prefix, cluster_id)
    if label != known:
        write_label(folder, label)


def folders_of_cluster(folder: Path, cluster_id: str, topic_prefix: str) -> list[Path]:
    """Return the other folders beside `folder` that are for the same cluster and prefix."""
    found: Mapping[Path, FolderLabel | None] = {
        path: read_label(path) for path in folder.parent.iterdir() if path.is_dir() and path != folder
    }
    return sorted(
        path
        for path, label in found.items()
        if label is not None and (label.cluster_id, label.topic_prefix) == (cluster_id, topic_prefix)
    )
