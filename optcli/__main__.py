"""`python -m optcli`: the command line where the script is not on the path."""

from optcli.cli import main

main()
