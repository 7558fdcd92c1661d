"""Python looks for garbage among all objects again and again, while requests wait."""

from __future__ import annotations

import gc

# Objects more than before, until Python looks at the young ones: many requests later.
_YOUNG = 10_000


def leave_out_what_exists() -> None:
    """Look no more at what exists now: the libraries and the model stay as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)
