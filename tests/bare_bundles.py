"""Bundles of Ray Serve that have nothing but a bundle.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optcli.serving.bundle import FILE, Bundle

_PLAIN: dict[str, Any] = {
    **dict.fromkeys(("model", "variant", "platform", "file"), "net"),
    **dict.fromkeys(("inputs", "outputs", "priorities"), ()),
    **dict.fromkeys(("largest_batch", "sealed_batches", "instances", "concurrency", "threads"), 1),
    **dict.fromkeys(("cpus", "queue_cap", "most_in_flight", "most_body_bytes"), 1),
    **dict.fromkeys(("wait_ms", "deadline_ms"), 1.0),
    **dict.fromkeys(("batched", "images"), False),
    "object_store_bytes": 1,
    "recipe": {"name": "r", "path": "r.yaml"},
    "runner": {"name": "onnxruntime", "version": "1", "settings": {}},
    "slo_ms": {},
}


def described_alone(folder: Path, **fields: object) -> Bundle:
    """Write a bundle.json and nothing beside it: that of a server which could not be started."""
    needed = {name for name, field in Bundle.model_fields.items() if field.is_required()}
    values = {name: _PLAIN.get(name) for name in {*needed, *_PLAIN}} | fields
    values.pop("schema_version", None)
    made = Bundle.model_validate({**values, "schema": 1})
    (folder / FILE).write_text(made.to_json())
    return made
