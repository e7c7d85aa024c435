"""Credentials of a command line: the user and the secret that sign its requests.

The first of these that is there counts: the file of `--credentials`, the environment variables
`BATONMQ_ACCESS_KEY` and `BATONMQ_SECRET_KEY`, and mqadmin's file ``$ROCKETMQ_HOME/conf/tools.yml``. No option
takes the secret itself: every user of a machine can read the command lines of its processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from batonmq.common.config import ConfigError
from batonmq.protocol.signing import Credentials

FILE_VARIABLE: Final = "BATONMQ_CREDENTIALS"
"""Environment variable that stands for `--credentials`."""
ACCESS_KEY_VARIABLE: Final = "BATONMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "BATONMQ_SECRET_KEY"
SECURITY_TOKEN_VARIABLE: Final = "BATONMQ_SECURITY_TOKEN"

credentials_option: Final = click.option(
    "--credentials",
    type=click.Path(path_type=Path),
    envvar=FILE_VARIABLE,
    help="File with accessKey and secretKey, e.g. mqadmin's tools.yml; default: the environment variables "
    f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}. [env: {FILE_VARIABLE}]",
)


def find_credentials(file: Path | None, environment: Mapping[str, str] = os.environ) -> Credentials | None:
    """The credentials to sign with; None if there are none. Raises `ConfigError`, which shows no secret."""
    if file is not None:
        return _from_file(file)
    access_key, secret_key = environment.get(ACCESS_KEY_VARIABLE), environment.get(SECRET_KEY_VARIABLE)
    if access_key or secret_key:
        if not (access_key and secret_key):
            raise ConfigError(f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE} must both be set")
        return _made("environment", access_key, secret_key, environment.get(SECURITY_TOKEN_VARIABLE))
    home = environment.get("ROCKETMQ_HOME")
    tools = Path(home, "conf", "tools.yml") if home else None
    return _from_file(tools) if tools is not None and tools.is_file() else None


def _from_file(path: Path) -> Credentials:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or stripped == "---":
            continue
        key, colon, value = stripped.partition(":")
        if not colon:
            raise ConfigError(f"{path}: line {number} is not 'key: value'")
        values[key.strip()] = _unquoted(value.strip())
    missing = [key for key in ("accessKey", "secretKey") if not values.get(key)]
    if missing:
        raise ConfigError(f"{path}: {' and '.join(missing)} missing or empty")
    return _made(str(path), values["accessKey"], values["secretKey"], values.get("securityToken"))


def _unquoted(value: str) -> str:
    """A YAML scalar; a comment begins with a blank and #."""
    if value[:1] in ('"', "'") and (end := value.find(value[0], 1)) > 0:
        return value[1:end]
    return value.partition(" #")[0].strip()


def _made(source: str, access_key: str, secret_key: str, token: str | None) -> Credentials:
    try:
        return Credentials(access_key, secret_key, token or None)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
