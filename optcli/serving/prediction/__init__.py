"""From an image to a model's input, and from its outputs to classes or boxes, as a recipe says.

`data.images` and `outputs.postprocess`, with the two modules that this one imports, need no optcli:
they are copied into deployments as they are, told by the two files that `of_recipe` makes. Batch
inference uses the same modules; `storage` reads what it wrote. `known_answers` is copied, too: a
file of answers that a server need not compute.
"""

from pathlib import Path

_OPTCLI = Path(__file__).parents[2]
# The modules that can be copied, by name, and where they lie.
COPIED = {
    "images": _OPTCLI / "data" / "images.py",
    "postprocess": _OPTCLI / "outputs" / "postprocess.py",
    "instances": _OPTCLI / "outputs" / "instances.py",
    "suppression": _OPTCLI / "outputs" / "suppression.py",
    "known_answers": _OPTCLI / "serving" / "prediction" / "known_answers.py",
}
# What turns outputs into answers: the first imports the others.
ANSWERING = ("postprocess", "instances", "suppression")
