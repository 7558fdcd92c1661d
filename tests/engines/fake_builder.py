"""A TensorRT module for building that has exactly what one version's surface says, and nothing else.

`surface/*.json` hold the names of the real bindings (`extract_surface.py`). Reading or setting any
other attribute raises AttributeError, as the real ones do; every call that configures is written down
in `module.said`.
"""

import enum
import json
import types
from pathlib import Path

SURFACES = Path(__file__).with_name("surface")
VERSIONS = ("8.6.0", "10.16.1.11", "11.4.0.106")


class Script:
    """What the fake will do: layers and inputs of the parsed network, what fails, what is logged."""

    def __init__(self, **wishes):
        self.inputs = {"image": [-1, 3, 8, 8]}
        self.layers = [("conv", "CONVOLUTION", "FLOAT"), ("relu", "ACTIVATION", "FLOAT")]
        self.errors, self.logs, self.plan = [], [], b"plan"
        self.information, self.opens = '{"Layers": ["conv"]}', True
        self.builder_starts = self.profile_fits = self.cache_fits = True
        for name, value in wishes.items():
            assert hasattr(self, name), name
            setattr(self, name, value)


def module(version, script=None, product="tensorrt"):
    """The module of a version, as `sys.modules[product]` would hold it."""
    surface = json.loads((SURFACES / f"{product}-{version}.json").read_text())
    made = types.ModuleType(product)
    made.__version__, made.said, made.script = version, [], script or Script()
    for name, members in surface["enums"].items():
        setattr(made, name, enum.IntEnum(name, members, start=0, module=product))
    for name, attributes in surface["classes"].items():
        kind = globals().get(f"Fake{name}", Guarded)
        unset = {each: None for each in attributes if not hasattr(kind, each)}
        about = {"_allowed": frozenset(attributes), "_module": made}
        setattr(made, name, type(name, (kind,), {**unset, **about}))
    return made


class Guarded:
    """Has what its version's surface has."""

    _allowed, _module = frozenset(), None

    def __getattribute__(self, name):
        if not name.startswith("_") and name not in object.__getattribute__(self, "_allowed"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return object.__getattribute__(self, name)

    def __setattr__(self, name, value):
        if not name.startswith("_"):
            if name not in self._allowed:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self._module.said.append((name, getattr(value, "name", value)))
        object.__setattr__(self, name, value)

    def _say(self, call, *values):
        self._module.said.append((call, *(getattr(value, "name", value) for value in values)))


class FakeBuilder(Guarded):
    def __init__(self, logger):
        self._logger = logger
        self._say("Builder")
        for severity, text in self._module.script.logs:
            logger.log(types.SimpleNamespace(name=severity), text)
        if not self._module.script.builder_starts:
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def create_network(self, flags=0):
        names = [
            member.name
            for member in self._module.NetworkDefinitionCreationFlag
            if flags & (1 << int(member))
        ]
        self._say("create_network", names)
        return self._module.INetworkDefinition()

    def create_builder_config(self):
        return self._module.IBuilderConfig()

    def create_optimization_profile(self):
        return self._module.IOptimizationProfile()

    def build_serialized_network(self, network, config):
        monitor = config.__dict__.get("progress_monitor")
        if monitor is not None:
            monitor.phase_start("Building", None, 2)
            monitor.step_complete("Building", 0)
            monitor.step_complete("Building", 1)
            monitor.phase_finish("Building")
        return self._module.script.plan


class FakeIBuilderConfig(Guarded):
    def __init__(self):
        self._flags, self._cache, self._profiles = {"TF32"}, None, 0

    def set_flag(self, flag):
        self._flags.add(flag.name)
        self._say("set_flag", flag)

    def clear_flag(self, flag):
        self._flags.discard(flag.name)
        self._say("clear_flag", flag)

    def get_flag(self, flag):
        return flag.name in self._flags

    def set_memory_pool_limit(self, pool, size_bytes):
        self._say("set_memory_pool_limit", pool, size_bytes)

    def set_tactic_sources(self, sources):
        names = [each.name for each in self._module.TacticSource if sources & (1 << int(each))]
        self._say("set_tactic_sources", names)
        return True

    def set_preview_feature(self, feature, on):
        self._say("set_preview_feature", feature, on)

    def set_compute_capability(self, capability, index):
        self._say("set_compute_capability", capability, index)
        return True

    def add_optimization_profile(self, profile):
        self._say("add_optimization_profile", profile._shapes)
        return 0 if self._module.script.profile_fits else -1

    def create_timing_cache(self, blob):
        cache = self._module.ITimingCache()
        cache._blob = bytes(blob)
        return cache

    def set_timing_cache(self, cache, ignore_mismatch):
        assert ignore_mismatch is False
        self._cache = cache
        return self._module.script.cache_fits or not cache._blob

    def get_timing_cache(self):
        return self._cache


class FakeITimingCache(Guarded):
    def serialize(self):
        return self._blob + b"+timed"


class FakeIOptimizationProfile(Guarded):
    def __init__(self):
        self._shapes = {}

    def set_shape(self, input, min, opt, max):
        self._shapes[input] = (list(min), list(opt), list(max))


class FakeINetworkDefinition(Guarded):
    def __init__(self):
        script, self._layers, before = self._module.script, [], "image"
        self._inputs = [self._tensor(name, shape, "FLOAT") for name, shape in script.inputs.items()]
        for name, kind, dtype in script.layers:
            layer = self._module.ILayer()
            layer._name, layer._type = name, self._module.LayerType[kind]
            layer._before = self._tensor(before, [-1], dtype)
            layer._after = self._tensor(f"{name}_out", [-1], dtype)
            self._layers.append(layer)
            before = f"{name}_out"

    def _tensor(self, name, shape, dtype):
        tensor = self._module.ITensor()
        tensor._name, tensor._shape, tensor._dtype = name, shape, self._module.DataType[dtype]
        return tensor

    num_layers = property(lambda self: len(self._layers))
    num_inputs = property(lambda self: len(self._inputs))
    num_outputs = property(lambda self: 1)

    def get_layer(self, index):
        return self._layers[index]

    def get_input(self, index):
        return self._inputs[index]

    def get_output(self, index):
        return self._layers[-1]._after


class FakeILayer(Guarded):
    name = property(lambda self: self._name)
    type = property(lambda self: self._type)
    num_inputs = property(lambda self: 1)
    num_outputs = property(lambda self: 1)

    def get_input(self, index):
        return self._before

    def get_output(self, index):
        return self._after

    def set_output_type(self, index, dtype):
        self._say("set_output_type", self._name, dtype)


class FakeITensor(Guarded):
    name = property(lambda self: self._name)
    shape = property(lambda self: self._shape)
    dtype = property(lambda self: self._dtype)


class FakeOnnxParser(Guarded):
    def __init__(self, network, logger): ...

    def set_flag(self, flag):
        self._say("parser.set_flag", flag)

    def parse_from_file(self, path):
        return not self._module.script.errors

    num_errors = property(lambda self: len(self._module.script.errors))

    def get_error(self, index):
        error = self._module.ParserError()
        error._about = self._module.script.errors[index]
        return error


class FakeParserError(Guarded):
    def node(self):
        return self._about["node"]

    def node_name(self):
        return self._about["name"]

    def node_operator(self):
        return self._about["operator"]

    def desc(self):
        return self._about["text"]


class FakeRuntime(Guarded):
    def __init__(self, logger):
        self._say("Runtime")

    def deserialize_cuda_engine(self, plan):
        assert bytes(plan) == self._module.script.plan
        return self._module.ICudaEngine() if self._module.script.opens else None


class FakeICudaEngine(Guarded):
    def create_engine_inspector(self):
        return self._module.EngineInspector()


class FakeEngineInspector(Guarded):
    def get_engine_information(self, format):
        assert format is self._module.LayerInformationFormat.JSON
        return self._module.script.information


class FakeILogger(Guarded):
    _allowed = frozenset({"log"})


class FakeIProgressMonitor:
    """Subclassed and called by the builder."""

    def phase_start(self, phase_name, parent_phase, num_steps): ...
