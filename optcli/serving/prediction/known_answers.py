"""Answers that are known ahead, in one SQLite file: a server looks into it before it computes.

The file is read where it lies and takes no memory of the server, however many answers it holds. It
serves one model with one preparation: where either differs, nothing of it is taken.

Needs nothing but Python.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path

FILE = "known_answers.sqlite"
_log = logging.getLogger("known_answers")
_TABLES = """
CREATE TABLE about (schema INTEGER, model TEXT, settings TEXT);
CREATE TABLE answers (sha256 BLOB PRIMARY KEY, answer BLOB NOT NULL) WITHOUT ROWID;
"""


class KnownAnswers:
    """Answers by the SHA-256 of an image's bytes. Of one thread at a time.

    `model` is a digest of all that decides an answer beside the image and its preparation, `settings`
    are the bytes that say how images are prepared and answers made. A file of others, and one that
    cannot be read, holds no answer; the log says so.
    """

    def __init__(self, path: Path, model: str, settings: bytes) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            about = connection.execute("SELECT schema, model, settings FROM about").fetchone()
        except sqlite3.Error as error:
            self._left_out(error)
            return
        if about == (1, model, hashlib.sha256(settings).hexdigest()):
            self._connection = connection
        else:
            connection.close()
            self._left_out("they are of another model, or of other settings")

    def answer(self, digest: bytes) -> bytes | None:
        """The answer as JSON; None where it is not known."""
        if self._connection is None:
            return None
        try:
            row = self._connection.execute(
                "SELECT answer FROM answers WHERE sha256 = ?", (digest,)
            ).fetchone()
        except sqlite3.Error as error:
            self._connection = None
            self._left_out(error)
            return None
        return None if row is None else bytes(row[0])

    def _left_out(self, reason: object) -> None:
        _log.warning("the answers in %s are left out: %s", self._path, reason)


def write(path: Path, model: str, settings: bytes, answers: Iterable[tuple[bytes, bytes]]) -> int:
    """Write a new file of digests and answers, the first of equal digests; gives how many it holds.

    Raises OSError where it cannot be written, and what `answers` raises.
    """
    try:
        connection = sqlite3.connect(path)
    except sqlite3.Error as error:
        raise OSError(str(error)) from error
    try:
        # Whoever writes it writes it whole or throws it away.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.executescript(_TABLES)
        with connection:
            about = (1, model, hashlib.sha256(settings).hexdigest())
            connection.execute("INSERT INTO about VALUES (?, ?, ?)", about)
            connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", answers)
        (count,) = connection.execute("SELECT COUNT(*) FROM answers").fetchone()
        return int(count)
    except sqlite3.Error as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()
