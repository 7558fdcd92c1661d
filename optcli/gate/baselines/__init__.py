"""Baselines: what a merge is compared with, packed into one verified file.

`save` packs artifacts with all that running them needs, `fetch` brings a name, a file or a URL here,
`load` checks a pack and puts its artifacts into the store;
`checked_out` gives a recipe as it was at a commit.
"""

from optcli.gate.baselines.manifest import SCHEMA
from optcli.gate.baselines.pack import Baseline, BaselineVariant, load, save
from optcli.gate.baselines.places import fetch, local_file, names, place_of
from optcli.gate.baselines.revisions import (
    CheckedOut,
    checked_out,
    commit_of,
    committed,
    committed_link,
)
