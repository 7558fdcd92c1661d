"""Write down what a version of TensorRT's Python bindings has: names of enums, classes, members.

    PYTHONPATH=SITE LD_LIBRARY_PATH=LIB python3.10 tests/engines/extract_surface.py tensorrt \
        > tests/engines/surface/tensorrt-8.6.0.json

SITE and LIB hold the bindings and their libraries (empty ones do: nothing is called). Names alone are
kept. `fake_builder.py` has no more than they say.
"""

import importlib
import json
import sys

# What is built and run with, and what 11 took away.
WANTED = {
    "Builder",
    "IBuilderConfig",
    "INetworkDefinition",
    "OnnxParser",
    "ParserError",
    "ILayer",
    "ITensor",
    "ILogger",
    "IOptimizationProfile",
    "IProgressMonitor",
    "ITimingCache",
    "IHostMemory",
    "Runtime",
    "ICudaEngine",
    "EngineInspector",
    "IExecutionContext",
    "Refitter",
    "OnnxParserRefitter",
    "IInt8EntropyCalibrator2",
    "BuilderFlag",
    "NetworkDefinitionCreationFlag",
    "MemoryPoolType",
    "ProfilingVerbosity",
    "LayerType",
    "HardwareCompatibilityLevel",
    "PreviewFeature",
    "TacticSource",
    "OnnxParserFlag",
    "DataType",
    "LayerInformationFormat",
    "ComputeCapability",
    "TensorIOMode",
}


def surface(module):
    """`{"version", "enums": {name: members}, "classes": {name: attributes}}`."""
    enums, classes = {}, {}
    for name in sorted(vars(module)):
        value = getattr(module, name)
        if name.startswith("_") or not isinstance(value, type):
            continue
        members = getattr(value, "__members__", None)
        if members is not None:
            enums[name] = list(members)
        else:
            classes[name] = sorted(each for each in dir(value) if not each.startswith("_"))
    return {"version": module.__version__, "enums": enums, "classes": classes}


if __name__ == "__main__":
    found = surface(importlib.import_module(sys.argv[1]))
    for kind in ("enums", "classes"):
        found[kind] = {name: value for name, value in found[kind].items() if name in WANTED}
    json.dump(found, sys.stdout, indent=None, sort_keys=True, separators=(",", ":"))
    sys.stdout.write("\n")
