"""Baselines: what a merge is compared with, packed into one verified file.

`save` packs artifacts with all that running them needs, `fetch` brings a name, a file or a URL here,
`load` checks a pack and puts its artifacts into the store.
"""

from __future__ import annotations

from optcli.baselines.pack import SCHEMA, Baseline, Kept, load, save
from optcli.baselines.places import fetch, names, place_of

__all__ = ["SCHEMA", "Baseline", "Kept", "fetch", "load", "names", "place_of", "save"]
