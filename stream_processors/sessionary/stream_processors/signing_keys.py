"""The file of the signing keys, which a worker reads again when it changed.

So a change of the key needs no restart. The judge knows no file: its `SigningKeys` take the new
secrets, from one record to the next.
"""

from sessionary.schemas.errors import cause_text
from sessionary.schemas.settings.env_settings import RereadFile
from sessionary.schemas.signatures import parse_signing_keys
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.settings import ProcessorSettings

_log = role_logger(__name__)


class KeyFile:
    """Keeps `settings.keys` as the file says, if the settings name one. Belongs to one thread."""

    def __init__(self, settings: ProcessorSettings) -> None:
        """Read nothing: the settings have read the file."""
        path = settings.signing_keys_file
        self._file = None if path is None else RereadFile(path, parse_signing_keys)
        self._keys = settings.keys
        self._known = settings.signing_keys
        self._has_failed = False

    def refresh(self) -> None:
        """Read the file again if it changed. Blocks.

        If it cannot be used, the keys that were read last stay in force; that is logged once, and
        tried again at the next call.
        """
        if self._file is None:
            return
        try:
            found = self._file.read_if_changed()
        except (OSError, ValueError) as error:
            if not self._has_failed:
                self._has_failed = True
                _log.error(
                    "the key file %(path)s cannot be used, the keys that were read last stay in force: %(error)s",
                    path=self._file.path,
                    **{**error_fields(error), "error": cause_text(error)},
                )
            return
        if self._has_failed:
            self._has_failed = False
            _log.info("the key file %(path)s can be used again", path=self._file.path)
        if found is None or list(found.items()) == list(self._known.items()):
            return
        former, self._known = self._known, found
        self._keys.replace(found)
        _log.info(
            "the keys of %(path)s are in force: %(keys)s; %(signer)s signs",
            path=self._file.path,
            keys=self._keys.fingerprint(),
            signer=next(iter(found)),
        )
        if gone := sorted(former.keys() - found.keys()):
            _log.warning(
                "signed by a key that is known no longer (%(gone)s), an event does not count from now on, also if "
                "the log is folded again: put the key back while the log holds such events",
                gone=", ".join(gone),
            )


__all__ = ["KeyFile"]
