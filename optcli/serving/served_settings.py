"""A bundle before it is started: its files, and `serve_config.yaml`, which a person may have edited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from optcli.errors import InputError, excerpt, first_line
from optcli.files import regular_files
from optcli.results.outcomes import Result
from optcli.serving.bundle import CONFIG, Bundle

_MODEL = "Model"
_FILES = ("launch.py", "app.py", "model.py", "pages.json", CONFIG)
_AGAIN = "correct it, or deploy again"


class UserConfig(Result):
    """What can be changed while a server runs: `user_config` of each deployment of the model."""

    max_batch_size: int = Field(ge=1)
    batch_wait_timeout_s: float = Field(ge=0, allow_inf_nan=False)
    max_in_flight: int = Field(ge=1)
    deadline_ms: float = Field(gt=0, allow_inf_nan=False)


def require_whole(folder: Path, made: Bundle) -> Bundle:
    """The bundle `as_configured`; raises `InputError` where files are gone or settings are wrong."""
    for name in (*_FILES, f"model/{made.file}"):
        if not regular_files.is_file(folder / name):
            raise InputError(f"the bundle has no {name}", place=str(folder), hint="deploy again")
    return as_configured(folder, made)


def as_configured(folder: Path, made: Bundle) -> Bundle:
    """The bundle with the batches, waits and replicas of its serve_config.yaml, which may be edited.

    Raises `InputError` for settings that are wrong.
    """
    path = folder / CONFIG
    applications = {each.route_prefix: each for each in _checked(_content(path), path).applications}
    settings = []
    for route in [each.route or "/" for each in made.priorities] or ["/"]:
        if (application := applications.get(route)) is None:
            raise _wrong(f"it has no application with the route_prefix {route}", path)
        module = application.import_path.partition(":")[0]
        if not regular_files.is_file(folder / f"{module}.py"):
            raise _wrong(f"import_path names the module {module!r}, which is not in the bundle", path)
        models = [each for each in application.deployments if each.name == _MODEL]
        if not models:
            raise _wrong(f"the application {application.name} has no deployment {_MODEL}", path)
        settings.append(_settings(models[0], path))
    if not made.priorities:
        return made.model_copy(update=settings[0])
    lanes = [each.model_copy(update=its) for each, its in zip(made.priorities, settings, strict=True)]
    whole = {"instances": sum(each.instances for each in lanes), "priorities": tuple(lanes)}
    return made.model_copy(update={**settings[-1], **whole})


def _settings(deployment: Any, path: Path) -> dict[str, Any]:
    """What a deployment of the model is set to, as bundle.json names it."""
    try:
        config = UserConfig.model_validate(deployment.user_config, strict=True)
    except ValidationError as error:
        raise _wrong(f"user_config of {deployment.name}: {_first(error)}", path) from error
    replicas = deployment.num_replicas
    return {
        "largest_batch": config.max_batch_size,
        "wait_ms": round(1000 * config.batch_wait_timeout_s, 6),
        "deadline_ms": config.deadline_ms,
        # With autoscaling there is no fixed number.
        **({"instances": replicas} if isinstance(replicas, int) else {}),
    }


def _content(path: Path) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(regular_files.read(path).decode())
    except (OSError, ValueError) as error:
        raise _wrong(f"it cannot be read: {first_line(error)}", path) from error
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = "" if mark is None else f" in line {mark.line + 1}"
        said = getattr(error, "problem", None) or first_line(error)
        raise _wrong(f"it is no YAML{at}: {said}", path) from error


def _checked(content: Any, path: Path) -> Any:
    """The content in Ray's own form."""
    from ray.serve.schema import ServeDeploySchema

    if not isinstance(content, dict):
        raise _wrong(f"found {excerpt(str(content))!r}, wanted a mapping of keys", path)
    if not isinstance(content.get("http_options"), dict) or not content.get("applications"):
        raise _wrong("it has no http_options or no applications", path)
    try:
        return ServeDeploySchema.model_validate(content)
    except ValidationError as error:
        raise _wrong(_first(error), path) from error
    except (ValueError, TypeError) as error:
        raise _wrong(first_line(error), path) from error


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def _wrong(message: str, path: Path) -> InputError:
    return InputError(f"the server cannot take it: {message}", place=str(path), hint=_AGAIN)
