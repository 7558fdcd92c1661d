"""`python -m optcli`: the command line where the script is not on the path."""

import sys

if not sys.flags.safe_path:
    # `-m` puts the current folder first among those that are imported from, and a `cache.py` of a
    # project would be taken for the library's.
    del sys.path[0]

from optcli.cli import main

main()
