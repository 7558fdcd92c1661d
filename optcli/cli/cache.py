"""`optcli cache`: what the store holds, whether it is sound, why a step must run, and making room."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from optcli.cli import options, show
from optcli.errors import ExitCode, UsageError, counted, shown_path
from optcli.results.document import Document, Items, Part, Section, table_of_texts
from optcli.store import Entry, Store

if TYPE_CHECKING:
    from optcli.store.remote import RemotePlace


@click.group("cache", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look into the store, check it and make room in it."""


_remote = click.option("--remote", is_flag=True, help="Take the remote store instead of the local one.")


@command.command(
    "ls",
    short_help="List what the store holds.",
    epilog=options.examples(
        "optcli cache ls", "optcli cache ls --remote --remote-store s3://bucket/prefix --kind artifact"
    ),
)
@options.store
@options.remote
@_remote
@options.as_json
@click.option("--kind", help="Only entries of this kind, e.g. artifact.")
def ls(
    store: Path | None,
    remote: bool,
    as_json: bool,
    kind: str | None,
) -> None:
    """List what the store holds: the most recently used last, in a remote store the newest last."""
    with _opened(store, remote) as opened:
        entries, where = _listed(opened, kind)
    rows = [
        {
            "kind": entry.kind,
            "key": entry.key,
            "step": entry.ingredients.get("step", ""),
            "format": entry.record.get("format", ""),
            "precision": entry.record.get("precision", ""),
            "size_bytes": entry.size_bytes,
            "created": entry.created,
            "fetched_from": entry.origin,
        }
        for entry in entries
    ]
    heads = ("key", "kind", "step", "format", "precision", "MB", "created")
    texts = [
        (
            entry.key[:12],
            *(str(row[name]) for name in heads[1:5]),
            f"{entry.size_bytes / 1e6:.2f}",
            str(entry.created),
        )
        for entry, row in zip(entries, rows, strict=True)
    ]
    total = sum(entry.size_bytes for entry in entries)
    answer = f"{counted(len(entries), 'entry', 'entries')}, {total / 1e6:.2f} MB, in {where}"
    table = table_of_texts(heads, texts, (0, 1, 2, 3, 4, 6))
    show(rows, _document("ls", table, answer), as_json=as_json)


def _document(name: str, part: Part, answer: str, outcome: str = "") -> Document:
    return Document(f"optcli cache {name}", [Section("", [part])], answer=answer, outcome=outcome)


def _listed(opened: Store, kind: str | None) -> tuple[list[Entry], str]:
    """The entries, and the place that they are in; what is damaged in a remote store is warned of."""
    if opened.remote is None:
        entries = sorted(opened.entries(kind), key=lambda entry: entry.last_used())
        return entries, shown_path(opened.root)
    from optcli.store.remote import upkeep

    listed, damaged = upkeep.entries(opened.remote, kind)
    for damage in damaged:
        options.warn("damaged", str(damage))
    return [entry for _, entry in listed], opened.remote.place.shown


@command.command(
    "verify",
    epilog=options.examples("optcli cache verify --repair", "optcli cache verify --remote"),
)
@options.store
@options.remote
@_remote
@options.as_json
@click.option("--repair", is_flag=True, help="Remove damaged entries; the next build makes them again.")
def verify(
    store: Path | None,
    remote: bool,
    as_json: bool,
    repair: bool,
) -> int:
    """Hash every file again and name what is damaged.

    The exit code is 4 if anything is damaged and --repair is not given. With --remote, optcli fetches
    all of the remote store to hash it, and keeps nothing of it here.
    """
    with _opened(store, remote, writes=repair) as opened:
        if opened.remote is None:
            damaged = opened.verify(repair=repair)
            wrong = {(each.kind, each.key) for each in damaged}
            count = sum((each.kind, each.key) not in wrong for each in opened.entries())
        else:
            from optcli.store.remote import upkeep

            count, damaged = upkeep.damaged(opened.remote, repair=repair)
    answer = f"{counted(count, 'entry', 'entries')} sound, {len(damaged)} damaged"
    answer += " and removed" if repair and damaged else ""
    items = Items([f"damaged: {damage}" for damage in damaged])
    document = _document("verify", items, answer, "reject" if damaged else "accept")
    show([vars(damage) for damage in damaged], document, as_json=as_json)
    return ExitCode.FAILED if damaged and not repair else ExitCode.DONE


@command.command(
    "why",
    short_help="Say why each step of a recipe must run, or that it is cached.",
    epilog=options.examples("optcli cache why recipe.yaml", "optcli cache why recipe.yaml onnx-int8"),
)
@options.recipe
@click.argument("variant", required=False)
@options.store
@options.remote
@click.option(
    "--remote", is_flag=True, help="Ask the remote store alone, as a machine with an empty store would."
)
@options.trust
@options.overrides
@options.as_json
def why(
    recipe: Path,
    variant: str | None,
    store: Path | None,
    remote: bool,
    trust: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say for each step of RECIPE (or VARIANT) whether it is cached and, if not, what differs.

    If you name a remote store, results that only it has are called `remote`, and optcli compares the
    steps with its results too.
    """
    from optcli.pipeline.preview import preview

    opened_store = options.opened(store)
    if remote:
        _require_remote(opened_store)
    document, record = preview(
        recipe,
        store=opened_store,
        overrides=overrides,
        only=(variant,) if variant else (),
        explain=True,
        trust=trust,
        remote_only=remote,
        tell=options.warn,
    )
    show(record, document, as_json=as_json)


@command.command(
    "gc",
    short_help="Remove leftovers of killed builds, and old results if you ask for it.",
    epilog=options.examples(
        "optcli cache gc --older-than 30d --dry-run", "optcli cache gc --remote --older-than 90d"
    ),
)
@options.store
@options.remote
@_remote
@options.as_json
@click.option(
    "--older-than",
    metavar="AGE",
    help="Remove entries that were last used (with --remote: uploaded) longer ago: 12h, 30d.",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    help="Remove the least recently used (with --remote: the first uploaded) entries until the store is"
    " no larger: 500MB, 20GB.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
def gc(
    store: Path | None,
    remote: bool,
    as_json: bool,
    older_than: str | None,
    max_size: str | None,
    dry_run: bool,
) -> None:
    """Remove leftovers of killed builds and, if you ask for it, entries and checkpoints by age or size.

    With --remote, optcli removes damaged results and leftovers of uploads that are older than a day.
    """
    older_than_s = _amount(older_than, {"s": 1, "m": 60, "h": 3600, "d": 86400}, "--older-than")
    max_bytes = _amount(max_size, {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}, "--max-size")
    with _opened(store, remote, writes=not dry_run) as opened:
        if opened.remote is None:
            removed = opened.gc(older_than_s, max_bytes, dry_run=dry_run)
        else:
            from optcli.store.remote import upkeep

            removed = upkeep.collect(opened.remote, older_than_s, max_bytes, dry_run=dry_run)
    total = sum(entry.size_bytes for entry in removed)
    items = Items([f"{'would remove' if dry_run else 'removed'} {entry}" for entry in removed])
    answer = f"{len(removed)} {'would be ' if dry_run else ''}removed, {total / 1e6:.2f} MB"
    show([vars(entry) for entry in removed], _document("gc", items, answer), as_json=as_json)


@contextmanager
def _opened(
    store: Path | None,
    remote: bool,
    *,
    writes: bool = False,
) -> Iterator[Store]:
    """The store; with `remote` connected to its remote one. Raises `UsageError` where that lacks."""
    opened_store = options.opened(store)
    if not remote:
        yield opened_store
        return
    place = _require_remote(opened_store)
    if writes and place.read_only:
        raise UsageError(
            "the remote store is read-only, and this removes something there",
            place="--remote-readonly",
            hint="leave --remote-readonly and OPTCLI_REMOTE_READONLY out, or add --dry-run",
        )
    with opened_store.connected(lambda _, __: None, uploading=False):  # what goes wrong there is raised
        yield opened_store


def _require_remote(opened_store: Store) -> RemotePlace:
    if opened_store.remote_place is None:
        raise UsageError(
            "no remote store is named",
            place="--remote",
            hint="name it with --remote-store URL or OPTCLI_REMOTE_STORE",
        )
    return opened_store.remote_place


def _amount(text: str | None, units: dict[str, float], option: str) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text)
    if not match or match[2] not in units:
        raise UsageError(
            f"found {text!r}, wanted a number and one of {', '.join(units)}",
            place=option,
            hint=f"for example {option} 30{list(units)[-1]}",
        )
    return float(match[1]) * units[match[2]]
