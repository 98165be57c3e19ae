"""What a spool's folder is for: a small file beside it, so that other spellings find it.

A folder is named for the spelling of the servers, which is all that a client knows before Kafka
answers. Its label has this spelling. It has no cluster: the same spelling may lead to another one
later. Each process notes the cluster that it has reached in its own lock. A client takes over dead
processes of another folder only if they have noted the client's cluster. Clusters that share an id,
as copies of one configuration may, count as one.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class FolderLabel(NamedTuple):
    """The content of a label.

    Attributes:
        bootstrap_servers: The servers as the folder's last client named them.
        topic_prefix: The prefix of the topics.
    """

    bootstrap_servers: str
    topic_prefix: str


def label_path(folder: Path) -> Path:
    """Return the place of a folder's label."""
    return folder.with_name(f"{folder.name}.json")


def read_label(folder: Path) -> FolderLabel | None:
    """Return a folder's label; None if there is none that can be read."""
    try:
        fields = json.loads(label_path(folder).read_bytes())
        return FolderLabel(f"{fields['bootstrap_servers']}", f"{fields['topic_prefix']}")
    except (OSError, ValueError, TypeError, KeyError):
        return None


def label_folder(folder: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    """Write a folder's label, unless it cannot be written: it is of use, and not needed."""
    label = FolderLabel(bootstrap_servers, topic_prefix)
    if label == read_label(folder):
        return
    path = label_path(folder)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with suppress(OSError):
        try:
            temporary.write_text(json.dumps(label._asdict()) + "\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def folders_of_prefix(folder: Path, topic_prefix: str) -> list[Path]:
    """Return the other folders beside `folder` that are for the same prefix. Raises `OSError`."""
    others = (path for path in folder.parent.iterdir() if path.is_dir() and path != folder)
    labels = ((path, read_label(path)) for path in others)
    return sorted(path for path, label in labels if label is not None and label.topic_prefix == topic_prefix)
