"""Writes a release's golden bytes: `python -m tests.golden.write 0.2.0`, until it is released."""

import json
import sys
from pathlib import Path
from typing import Any

from sessionary.schemas.codec import Event, encode_event, encode_record
from sessionary.schemas.codec.catalogue import current_schemas, schema_fingerprint
from tests.support.values import as_json, every_example

FOLDER = Path(__file__).parent


def write_json(name: str, value: dict[str, Any]) -> None:
    with (FOLDER / name).open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1, sort_keys=True)
        file.write("\n")


def main(version: str) -> None:
    golden = {}
    for value in every_example():
        encoded = encode_event(value) if isinstance(value, Event) else encode_record(value)
        name = type(value.payload if isinstance(value, Event) else value).__name__
        golden[name] = {"bytes": encoded.hex(), "value": as_json(value)}
    write_json(f"{version}.json", golden)
    fingerprints = {name: schema_fingerprint(schema).hex() for name, schema in current_schemas().items()}
    write_json(f"fingerprints-{version}.json", fingerprints)


if __name__ == "__main__":
    main(sys.argv[1])
