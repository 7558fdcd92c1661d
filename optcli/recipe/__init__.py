"""What the user asked for, fully checked before anything runs and without a heavy import.

`load` reads a recipe and finds everything that is wrong with it at once. Two things it cannot see
without running the user's code: the options and the formats of their own passes. Once a worker has
found out, `option_problems` and `check_formats` check those.
"""

from optcli.recipe.consistency import passes_between
from optcli.recipe.loading import as_written, check_formats, load, option_problems
from optcli.recipe.models import PassUse, Recipe, RunnerUse, Variant
from optcli.recipe.names import name_of
from optcli.recipe.schema import MODELINE, SCHEMA_FILE, schema
