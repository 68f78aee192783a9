"""Reading params.yaml: one frozen dataclass per section, checked key by key.

The dataclass of a section lives in the package that uses it; this module reads and checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eyas import paths
from eyas.errors import ConfigError

SECTIONS = (
    "target",
    "datasets",
    "prompts",
    "generate",
    "validate",
    "reassemble",
    "vocab",
    "extract",
    "train",
    "export",
    "speculation",
    "evaluate",
    "engine",
    "server",
    "compute",
)
"""Every section of params.yaml, in pipeline order.

No stage depends on `server` and `compute`: nothing in them may change a result.
"""

UNSEEN = ("size", "nfiles")
"""Keys that DVC's run cache leaves out at any depth of a stage's params (dvc/stage/cache.py, `_get_cache_hash`): they are the
names of its own counts for outputs."""

RENAMED = {"size": "a dataset has `count`, the draft vocabulary `draft_vocab_size`"}

Params = TypeVar("Params")


def load_section(section: str, schema: type[Params], path: Path = paths.PARAMS) -> Params:
    """Read a section of params.yaml as its dataclass.

    A dataclass may check values in `__post_init__` by raising ValueError("key: value is ...").

    Raises:
        ConfigError: unknown key, wrong type, missing or impossible value; names the key in full.
    """
    return build(section, schema, read_section(section, path), path)


def load_keys(section: str, keys: Sequence[str], schema: type[Params], path: Path = paths.PARAMS) -> Params:
    """Read these keys alone, for a stage that depends on them and not on the rest of the section.

    They stand literally in the stage script, and as `section.key` in dvc.yaml and in its Guard.

    Raises:
        ConfigError: as load_section.
    """
    values = read_section(section, path)
    if isinstance(values, dict):
        values = {key: values[key] for key in keys if key in values}
    return build(section, schema, values, path)


def build(name: str, schema: type[Params], values: Any, path: Path = paths.PARAMS) -> Params:
    """Check values (a mapping) against a dataclass and build it; `name` is the full key for messages."""
    if not isinstance(values, dict):
        raise ConfigError(f"`{name}` must be a mapping, not {values!r}", where=str(path))
    try:
        merged = OmegaConf.merge(_writable(OmegaConf.structured(schema)), OmegaConf.create(values))
        return cast("Params", OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        key = f"{name}.{error.full_key}" if error.full_key else name
        reason = str(error).splitlines()[0]
        raise ConfigError(f"`{key}`: {reason}", where=str(path), hint=_hint(schema, error)) from error
    except ValueError as error:
        raise ConfigError(_with_full_key(name, str(error)), where=str(path)) from error


def read_section(section: str, path: Path = paths.PARAMS) -> Any:
    """A section of params.yaml as plain values, unchecked.

    Raises:
        ConfigError: no such file, no YAML, an unknown section beside it, or the section is absent.
    """
    try:
        params = OmegaConf.load(path)
    except FileNotFoundError as error:
        raise ConfigError(
            "no params.yaml here", where=str(path.resolve()), hint="run from the repository root"
        ) from error
    except Exception as error:  # YAML has no common exception type across loaders
        raise ConfigError(f"params.yaml is not valid YAML: {error}", where=str(path)) from error
    if not isinstance(params, DictConfig):
        raise ConfigError("params.yaml must be a mapping of sections", where=str(path))
    unknown = sorted(str(key) for key in params if key not in SECTIONS)
    if unknown:
        raise ConfigError(
            f"unknown section `{unknown[0]}`", where=str(path), hint=f"known sections: {', '.join(SECTIONS)}"
        )
    if section not in params:
        raise ConfigError(f"section `{section}` is missing", where=str(path))
    if params[section] is None:
        return {}
    values = _plain(params[section], section, path)
    _check_names(values, section, path)
    return values


def _check_names(values: Any, name: str, path: Path) -> None:
    """Refuse keys that DVC does not see: its run cache would hand out the outputs of another value."""
    if not isinstance(values, dict):
        return
    for key, value in values.items():
        if key in UNSEEN:
            raise ConfigError(
                f"`{name}.{key}`: no key may be called `{key}`: DVC leaves out keys of this name when it looks "
                "for earlier runs, and would hand out the outputs of another value",
                where=str(path),
                hint=RENAMED.get(key, "rename it"),
            )
        _check_names(value, f"{name}.{key}", path)


def _plain(values: Any, section: str, path: Path) -> Any:
    try:
        return OmegaConf.to_container(values, resolve=True) if OmegaConf.is_config(values) else values
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"`{error.full_key or section}`: {str(error).splitlines()[0]}",
            where=str(path),
            hint="${...} refers to another key of params.yaml; text can't hold it",
        ) from error


def read_value(name: str, path: Path = paths.PARAMS) -> Any:
    """A section, or with a dotted name one key of it, as plain values, unchecked; None for a key that is absent.

    Raises:
        ConfigError: as read_section.
    """
    section, _, key = name.partition(".")
    values = read_section(section, path)
    return values if not key else values.get(key) if isinstance(values, dict) else None


def read_sections(*names: str, path: Path = paths.PARAMS) -> dict[str, Any]:
    """Several sections as plain values, unchecked, to be shown.

    Raises:
        ConfigError: as read_section.
    """
    return {name: read_section(name, path) for name in names}


def _writable(node: DictConfig) -> DictConfig:
    """OmegaConf marks the nodes of frozen dataclasses read-only, and then refuses to merge into nested ones."""
    OmegaConf.set_readonly(node, False)
    for key in node:
        child = node._get_node(key)  # noqa: SLF001 - plain access would resolve missing values
        if isinstance(child, DictConfig) and not child._is_none():  # noqa: SLF001
            _writable(child)
    return node


def _with_full_key(name: str, message: str) -> str:
    """`lr: 0 is ...` of section train as `train.lr`: 0 is ..."""
    key, colon, rest = message.partition(": ")
    if colon and key.replace(".", "").isidentifier():
        return f"`{name}.{key}`: {rest}"
    return f"`{name}`: {message}"


def _hint(schema: type[Any], error: OmegaConfBaseException) -> str | None:
    fields = getattr(error.object_type or schema, "__dataclass_fields__", None)
    return f"known keys: {', '.join(fields)}" if fields else None
