"""What a node does that is a device: files come to it by the remote store, or lie in a shared one."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optcli.errors import StoreError
from optcli.pipeline.on_ray import node, parcels
from optcli.pipeline.remote_devices import measuring
from optcli.pipeline.remote_devices.measuring import UnreachableError
from optcli.pipeline.remote_devices.messages import Travelling


def carry_out(record: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """As `far.measuring` says."""
    return measuring.carry_out(record, _arrived)


def _arrived(travelling: Travelling) -> Mapping[str, Path]:
    if travelling.url is None:
        if not node.sees(Path(travelling.mark), travelling.content):
            where = Path(travelling.mark).parent
            raise UnreachableError(f"it does not see the store {where}")
        return {}
    try:
        store = node.node_store()
        remote = parcels.opened(travelling.url, store)
        return {
            path: parcels.fetched(store, remote, contents).path
            for path, contents in travelling.files.items()
        }
    except parcels.UnreachableError as error:
        raise UnreachableError(str(error)) from error
    except StoreError as error:
        raise UnreachableError(f"the store of {socket.gethostname()}: {error.message}") from error
