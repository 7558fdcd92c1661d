"""What the outputs of a model mean: boxes, scores, class numbers, and where each of them stands.

`describe` says it once, from the recipe, from what an exporter wrote into the file, or from shapes.
What judges, decodes or compares outputs asks here.
"""

from optcli.outputs.describing import FileOutput, SampleOutput, class_count, decoded_names, describe
from optcli.outputs.guessing import Guess, Probe, decoding, guess, guessed_decoding, meanings
from optcli.outputs.meaning import WORDS, Exported, OutputMeaning, exported
from optcli.outputs.seen import decoding_options_of, facts_of, of_facts, probe_of
from optcli.settings.outputs import OutputPart
