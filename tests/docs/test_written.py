"""What README and docs say exists: links, verbs, options, passes' files; every verb documented."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from pages import REPOSITORY
from verbs import VERBS, options, parse

from optcli import cli
from optcli.cli import root

PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in _LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [
                re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings
            ]
            assert anchor in slugs, f"{page.name}: {target}"


def test_every_command_in_the_readme_is_one():
    said = re.findall(r"(?:^    |`)optcli ([^`\n]*)", README, re.MULTILINE)
    assert len(said) > 5
    for line in said:
        words = line.split("#")[0].replace(",", " ").split()
        assert words[0] in VERBS, f"README: optcli {line}"
        command = VERBS[words[0]]
        below = isinstance(command, click.Group) and len(words) > 1
        name = f"{words[0]} {words[1]}" if below else words[0]
        assert name in VERBS, f"README: optcli {line}"
        for word in words:
            if word.startswith("-"):
                assert word in options(VERBS[name]), f"README: {word} of optcli {name}"


def test_the_readme_is_a_page_and_no_book():
    lines = README.splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 100] == []


def test_options_named_anywhere_in_the_readme_belong_to_a_verb():
    known = set().union(*(options(each) for each in VERBS.values()))
    text = re.sub(r"pip install.*|\(`benchmarks/[^)]*\)", "", README)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert len(named) > 2
    assert named <= known


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_and_option_is_described(name):
    command = VERBS[name]
    assert command.help
    for one in command.params:
        if isinstance(one, click.Option):
            assert one.help, f"{one.opts} of {name}"


@pytest.mark.parametrize(
    "name", [name for name, each in VERBS.items() if not isinstance(each, click.Group)]
)
def test_every_verb_prints_json_on_request(name):
    if name == "schema":  # it prints nothing else
        return
    assert "--json" in options(VERBS[name])


@pytest.mark.parametrize(
    "name", [name for name, each in VERBS.items() if not isinstance(each, click.Group)]
)
def test_every_verb_ends_with_two_examples_that_are_right(name):
    """Files that an example names need not be there; its options must."""
    given = VERBS[name].epilog.partition("Examples:\n")[2].splitlines()
    assert len(given) == 2
    for example in given:
        words = shlex.split(example.partition(">")[0])
        assert words[: 1 + len(name.split())] == ["optcli", *name.split()]
        parse(words)


def test_every_verb_says_where_its_arguments_come_from():
    """A verb without what it needs is an error whose hint says how to get it."""
    context = click.Context(root)
    needed = {
        each.make_metavar(context)
        for command in VERBS.values()
        for each in command.params
        if isinstance(each, click.Argument) and each.required
    }
    assert needed == cli._SOURCES.keys()
