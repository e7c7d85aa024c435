"""exportConfigs: the configuration of a cluster's brokers as a JSON file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from batonmq.admin.command import command
from batonmq.admin.operations import exports
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.common.files import replace_file
from batonmq.protocol.json import encode

EXPORTS: Final[Mapping[tuple[bool, bool], str]] = {
    (False, False): "metadata.json",
    (True, False): "topic.json",
    (False, True): "subscriptionGroup.json",
    (True, True): "metadata.json",
}
"""Only topics, only groups -> file of exportMetadata."""

folder_option = click.option(
    "-f",
    "--filePath",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/tmp/rocketmq/export"),
    show_default=True,
    help="Folder of the file.",
)


@command("exportConfigs")
@click.option("-c", "--clusterName", "cluster", required=True, help="The cluster.")
@folder_option
async def main(admin: Admin, out: Output, cluster: str, folder: Path) -> None:
    """Write the brokers' configuration to a file.

    The file is configs.json in the folder -f: the main keys of each master of a cluster, and how many name
    servers, masters and slaves there are.
    """
    write_json(out, folder / "configs.json", await exports.configs(admin, cluster))


def write_json(out: Output, path: Path, value: Mapping[str, Any]) -> None:
    """Write a value to a file, in a folder that is made if it is missing. Raises `AdminError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, encode(dict(value)))
    except OSError as error:
        raise AdminError(f"{path}: {error.strerror or error}") from None
    out.done(f"exported to {path}", file=str(path))
