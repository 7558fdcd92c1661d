"""docs/texts.py: every text that people read is listed, and nothing else."""

import importlib.util
from pathlib import Path

import pytest
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


VERB = '''
@click.command("serve", epilog=examples())
def command(folder):
    """Start the server of a bundle.

    It listens on the loopback address. Ctrl-C stops it.
    """
    click.echo("ready at the address that was given")

def _private():
    """Nobody reads what a function without a verb says."""
'''


def test_help_and_what_a_verb_prints_are_listed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(texts, "ROOT", tmp_path)
    path = tmp_path / "cli" / "serve.py"
    path.parent.mkdir()
    path.write_text(VERB)
    assert [text for _, text in texts.texts(path)] == [
        "Start the server of a bundle.",
        "It listens on the loopback address.",
        "Ctrl-C stops it.",
        "ready at the address that was given",
    ]


def test_docstrings_that_the_reference_shows_are_listed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(texts, "ROOT", tmp_path)
    source = 'class Prune:\n    """Removes the least important channels."""\n'
    for room, listed in (("passes", 1), ("pipeline", 0)):
        path = tmp_path / room / "prune.py"
        path.parent.mkdir()
        path.write_text(source)
        assert len(list(texts.texts(path))) == listed


PAGE = """# How do I begin?

Write a recipe. `optcli build` reads
it, e.g. this one:

```yaml
version: 1   # not a sentence at all
```

    optcli build recipe.yaml

| key | what it is for |
| --- | --- |
| `name` | names the folder of results |

- One point of a list. And another.
"""


def test_the_sentences_of_a_page_are_listed_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    assert list(texts.sentences(tmp_path / "page.md")) == [
        (1, "How do I begin?"),
        (3, "Write a recipe."),
        (3, "`optcli build` reads it, e.g. this one:"),
        (12, "what it is for"),
        (14, "names the folder of results"),
        (16, "One point of a list."),
    ]


def test_every_page_but_the_reference_is_listed() -> None:
    names = [page.relative_to(REPOSITORY).as_posix() for page in texts.pages()]
    assert {"README.md", "docs/gate.md", "docs/how-to/models.md"} <= set(names)
    assert not any(name.startswith("docs/reference/") for name in names)


@pytest.mark.long
@pytest.mark.slow
def test_the_rooms_have_texts() -> None:
    listed = [text for path in texts.ROOT.rglob("*.py") for _, text in texts.texts(path)]
    assert "run `optcli build RECIPE` first" in listed
    assert len(listed) > 1000
