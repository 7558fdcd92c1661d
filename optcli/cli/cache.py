"""`optcli cache`: what the store holds, whether it is sound, why a step must run, and making room."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from optcli.cli import options
from optcli.errors import ExitCode, UsageError
from optcli.paths import shown
from optcli.store import Store


@click.group("cache", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look into the store."""


@command.command("ls", epilog=options.examples("optcli cache ls", "optcli cache ls --kind artifact"))
@options.store
@options.as_json
@click.option("--kind", help="Only entries of this kind, e.g. artifact.")
def ls(store: Path | None, as_json: bool, kind: str | None) -> None:
    """List what the store holds, the most recently used last."""
    entries = sorted(_open(store).entries(kind), key=lambda entry: entry.last_used())
    rows = [
        {
            "kind": entry.kind,
            "key": entry.key,
            "step": entry.ingredients.get("step", ""),
            "format": entry.record.get("format", ""),
            "precision": entry.record.get("precision", ""),
            "size_bytes": entry.size_bytes,
            "created": entry.created,
        }
        for entry in entries
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        what = " ".join(str(row[name]) for name in ("format", "precision") if row[name])
        size = f"{row['size_bytes'] / 1e6:9.2f} MB"
        name = f"{row['key'][:12]}  {row['kind']:<11} {row['step']:<24}"
        click.echo(f"{name} {what:<16} {size}  {row['created']}")
    total = sum(entry.size_bytes for entry in entries)
    click.echo(f"{len(entries)} entries, {total / 1e6:.2f} MB, in {shown(_open(store).root)}")


@command.command(
    "verify", epilog=options.examples("optcli cache verify", "optcli cache verify --repair")
)
@options.store
@options.as_json
@click.option("--repair", is_flag=True, help="Remove damaged entries; the next build makes them again.")
def verify(store: Path | None, as_json: bool, repair: bool) -> int:
    """Hash every file again and name what is damaged. Exit code 4 where anything is."""
    opened = _open(store)
    damaged = opened.verify(repair=repair)
    if as_json:
        click.echo(json.dumps([vars(damage) for damage in damaged], indent=2, default=str))
    else:
        for damage in damaged:
            click.echo(f"damaged: {damage}")
        count = sum(1 for _ in opened.entries())
        click.echo(
            f"{count} entries sound, {len(damaged)} damaged"
            + (" and removed" if repair and damaged else "")
        )
    return ExitCode.FAILED if damaged and not repair else ExitCode.DONE


@command.command(
    "why",
    epilog=options.examples("optcli cache why recipe.yaml", "optcli cache why recipe.yaml onnx-int8"),
)
@options.recipe
@click.argument("variant", required=False)
@options.store
@options.overrides
@options.as_json
def why(
    recipe: Path, variant: str | None, store: Path | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Say for each step of RECIPE (or VARIANT) whether it is cached and, if not, what differs."""
    from optcli.pipeline import preview

    only = (variant,) if variant else ()
    lines, record = preview(recipe, store=store, overrides=overrides, only=only, explain=True)
    click.echo(json.dumps(record, indent=2) if as_json else "\n".join(lines))


@command.command(
    "gc", epilog=options.examples("optcli cache gc --dry-run", "optcli cache gc --older-than 30d")
)
@options.store
@options.as_json
@click.option("--older-than", metavar="AGE", help="Remove what was not used for this time: 12h, 30d.")
@click.option("--max-size", metavar="SIZE", help="Remove the least recently used down to: 500MB, 20GB.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
def gc(
    store: Path | None, as_json: bool, older_than: str | None, max_size: str | None, dry_run: bool
) -> None:
    """Make room: leftovers of killed builds always; entries, checkpoints by age or size when asked."""
    removed = _open(store).gc(
        older_than_s=_amount(older_than, {"s": 1, "m": 60, "h": 3600, "d": 86400}, "--older-than"),
        max_bytes=_amount(max_size, {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}, "--max-size"),
        dry_run=dry_run,
    )
    if as_json:
        click.echo(json.dumps([vars(entry) for entry in removed], indent=2, default=str))
        return
    for entry in removed:
        click.echo(f"{'would remove' if dry_run else 'removed'} {entry}")
    total = sum(entry.size_bytes for entry in removed)
    click.echo(f"{len(removed)} {'would be ' if dry_run else ''}removed, {total / 1e6:.2f} MB")


def _open(store: Path | None) -> Store:
    return Store(Store.default_root(store))


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
