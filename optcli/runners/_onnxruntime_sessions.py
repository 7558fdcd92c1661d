"""Opening a session of ONNX Runtime with one provider, and no other in its stead.

By itself ONNX Runtime logs that a provider does not load, and computes on the CPU.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optcli.errors import RunnerError, did_you_mean, first_line
from optcli.models.formats import onnxruntime_providers
from optcli.models.formats.onnxruntime_providers import PROVIDERS, Name, Provider
from optcli.results import flags

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

Value = str | int | float | bool
_CPU = "CPUExecutionProvider"
_RECORD = "session.record_ep_graph_assignment_info"


def check_options(name: Name, options: Mapping[str, Value]) -> None:
    """Raise `ValueError` for an option that the provider does not know, or that is optcli's to give."""
    provider = PROVIDERS[name]
    for key in options:
        if key in provider.stream:
            raise ValueError(f"provider_options: {key} is given by optcli, which times that stream")
        if key not in provider.options:
            hint = did_you_mean(key, provider.options)
            raise ValueError(f"provider_options: {name} knows no option {key!r}; {hint}")


def words(options: Mapping[str, Value]) -> dict[str, str]:
    """Options as providers read them: `1` and `0` for true and false."""
    return {
        key: str(int(value)) if isinstance(value, bool) else str(value)
        for key, value in options.items()
    }


def opened(
    path: str, settings: SessionOptions, name: Name, options: Mapping[str, str]
) -> InferenceSession:
    """A session that computes with the provider.

    Raises `RunnerError` where that does not load, or is not what computes. What ONNX Runtime itself
    raises for the model comes through.
    """
    import onnxruntime

    provider = PROVIDERS[name]
    if name == "cpu":
        providers: list[Any] = [(_CPU, dict(options))] if options else [_CPU]
        return onnxruntime.InferenceSession(path, settings, providers=providers)
    settings.add_session_config_entry(_RECORD, "1")
    preload_message = onnxruntime_providers.preload() if provider.device == "cuda" else ""
    available = provider.name in onnxruntime.get_available_providers()
    if available and not onnxruntime_providers.is_plugin(provider):
        providers = [(provider.name, dict(options)), *provider.behind]
        try:
            # Otherwise it prints what it is told, and tries again on the CPU.
            session = onnxruntime.InferenceSession(
                path, settings, providers=providers, enable_fallback=0
            )
        except Exception as error:
            reason = onnxruntime_providers.library_reason(provider.name)
            if not reason:
                raise
            raise _unusable(name, reason, preload_message) from error
    else:
        # One device: some plug-ins fail with several.
        settings.add_provider_for_devices(_devices(name, provider)[:1], dict(options))
        # With fallback, it would go on with the CPU in the middle of a call.
        session = onnxruntime.InferenceSession(path, settings, enable_fallback=0)
    require_used(session, name, preload_message)
    return session


def _devices(name: Name, provider: Provider) -> Sequence[Any]:
    import onnxruntime

    version = onnxruntime.__version__
    if not provider.plugin or importlib.util.find_spec(provider.plugin) is None:
        available = ", ".join(onnxruntime.get_available_providers())
        raise _unusable(name, f"ONNX Runtime {version} is built without it (it has {available})")
    if not hasattr(onnxruntime, "get_ep_devices"):
        raise _unusable(name, f"ONNX Runtime {version} takes no plug-ins")
    try:
        devices = onnxruntime_providers.plugin_devices(provider)
    except Exception as error:
        raise _unusable(name, first_line(error)) from error
    if not devices:
        there = sorted({_described(each.device) for each in onnxruntime.get_ep_devices()})
        nothing = f"the plug-in {provider.plugin} finds nothing here that it can run on"
        raise _unusable(name, f"{nothing}: ONNX Runtime sees {', '.join(there)}")
    return devices


def device_of(provider: Provider) -> str | None:
    """What a plug-in computes on, in words; None where ONNX Runtime itself has the provider."""
    if not onnxruntime_providers.is_plugin(provider):
        return None
    return _described(onnxruntime_providers.plugin_devices(provider)[0].device)


def _described(device: Any) -> str:
    return f"{device.type.name} of {device.vendor}"


def require_used(session: InferenceSession, name: Name, preload_message: str = "") -> None:
    """Raise `RunnerError` where another provider comes first, or this one is given nothing to do."""
    provider, first = PROVIDERS[name], session.get_providers()[0]
    if first != provider.name:
        reason = onnxruntime_providers.library_reason(provider.name)
        raise _unusable(
            name,
            f"ONNX Runtime fell back to {first}, wanted {provider.name}",
            reason or preload_message,
        )
    shares = assigned(session)
    if shares and not shares.get(provider.name):
        others = ", ".join(shares)
        raise RunnerError(
            f"{provider.name} takes none of the {sum(shares.values())} operators: {others} computes",
            hint="this provider does not support them, or wants numbers for all sizes: set"
            " `shapes: static`, or another `provider`",
        )


def assigned(session: InferenceSession) -> dict[str, int]:
    """How many operators each provider computes; empty where ONNX Runtime does not tell."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {}
    counts: Counter[str] = Counter()
    try:
        for part in session.get_provider_graph_assignment_info():
            counts[part.ep_name] += len(part.get_nodes())
    except Exception:  # it was not recorded
        return {}
    return dict(counts)


def on_the_cpu(shares: Mapping[str, int]) -> list[flags.Flag]:
    """A flag where more than a tenth of the operators are left to the CPU."""
    count, total = shares.get(_CPU, 0), sum(shares.values())
    if count * 10 <= total:
        return []
    return [flags.operators_on_cpu(count, total)]


def _unusable(name: Name, reason: str, cause: str = "") -> RunnerError:
    install = PROVIDERS[name].install
    return RunnerError(
        f"the provider {name} cannot be used: {reason}{f' ({cause})' if cause else ''}",
        hint=f"{install}; or set `provider: cpu`",
    )
