"""docs/texts.py: every text that people read is listed, and nothing else."""

import importlib.util
from pathlib import Path

from pages import REPOSITORY

spec = importlib.util.spec_from_file_location("texts", REPOSITORY / "docs" / "texts.py")
assert spec is not None
texts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(texts)

SOURCE = '''
"""A module's own docstring is not listed."""

def refuse(name):
    """Nor is that of a function."""
    key = "not a text for people"
    raise UsageError(f"there is no {name} here", place=key, hint="name one that is there")

option = Field(3, description="how many there are of it")
'''


def test_messages_hints_and_descriptions_are_listed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(texts, "ROOT", tmp_path)
    path = tmp_path / "room" / "module.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    found = [text for _, text in texts.texts(path)]
    assert found == ["how many there are of it", "there is no {} here", "name one that is there"]


def test_words_of_the_report_are_listed_wherever_they_stand(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(texts, "ROOT", tmp_path)
    path = tmp_path / "report" / "words.py"
    path.parent.mkdir()
    path.write_text('said = f"{count} of all trials"\n')
    assert [text for _, text in texts.texts(path)] == ["{} of all trials"]


def test_the_rooms_have_texts() -> None:
    listed = [text for path in texts.ROOT.rglob("*.py") for _, text in texts.texts(path)]
    assert "run `optcli build RECIPE` first" in listed
    assert len(listed) > 1000
