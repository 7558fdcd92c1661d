"""The file of answers that a server need not compute, and what of it is not taken."""

import hashlib
import logging
from pathlib import Path

import pytest

from optcli.serving.prediction.known_answers import FILE, KnownAnswers, write

SETTINGS = b'{"schema": 1}'


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def written(folder: Path) -> Path:
    path = folder / FILE
    rows = [(digest("a"), b'{"classes": []}'), (digest("b"), b"{}"), (digest("a"), b"later")]
    assert write(path, "model", SETTINGS, iter(rows)) == 2
    return path


def test_answers_are_found_by_the_digest_of_the_image(tmp_path: Path) -> None:
    known = KnownAnswers(written(tmp_path), "model", SETTINGS)
    assert known.answer(digest("a")) == b'{"classes": []}', "the first of equal digests"
    assert known.answer(digest("b")) == b"{}"
    assert known.answer(digest("c")) is None


@pytest.mark.parametrize(("model", "settings"), [("other", SETTINGS), ("model", b'{"schema": 2}')])
def test_answers_of_another_model_or_preparation_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, model: str, settings: bytes
) -> None:
    with caplog.at_level(logging.WARNING, "known_answers"):
        known = KnownAnswers(written(tmp_path), model, settings)
    assert known.answer(digest("a")) is None
    assert "of another model, or of other settings" in caplog.text


def test_a_broken_file_costs_the_hits_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path)
    path.write_bytes(b"no database at all" * 100)
    gone = KnownAnswers(tmp_path / "gone.sqlite", "model", SETTINGS)
    broken = KnownAnswers(path, "model", SETTINGS)
    assert gone.answer(digest("a")) is broken.answer(digest("a")) is None
    assert caplog.text.count("are left out") == 2


def test_a_file_that_breaks_off_is_left_out_when_that_is_seen(tmp_path: Path) -> None:
    path = tmp_path / FILE
    write(path, "model", SETTINGS, ((digest(str(n)), b"x" * 500) for n in range(2000)))
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    known = KnownAnswers(path, "model", SETTINGS)
    assert {known.answer(digest(str(n))) for n in range(50)} <= {None, b"x" * 500}


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="unable to open"):
        write(tmp_path / "gone" / FILE, "model", SETTINGS, [])
