"""The ``batonmq`` command: programs, tools and jobs, each loaded only when it is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version

import click

from batonmq._compiled import COMPILED
from batonmq.common.command_group import SuggestingGroup

COMMANDS = {
    "namesrv": ("batonmq.cli.programs:namesrv", "Run a name server."),
    "controller": ("batonmq.cli.programs:controller", "Run a controller."),
    "broker": ("batonmq.cli.programs:broker", "Run a broker."),
    "container": ("batonmq.cli.programs:container", "Run several brokers in one process, or in a few."),
    "admin": ("batonmq.admin.main:admin", "Look at and change a cluster, with mqadmin's commands."),
    "spark": (
        "batonmq.spark.main:spark",
        "Run a job over topics: archive, replay, mirror, lag, and more.",
    ),
    "demo": ("batonmq.demo.main:demo", "A cluster, 336,776 flights, a kill -9 and a pipeline over it."),
}


class LazyGroup(SuggestingGroup):
    """Imports a subcommand's module when it runs: starting a broker must not load Spark."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.startswith("batonmq"):
                raise
            raise click.ClickException(
                f"'batonmq {cmd_name}' needs the package {missing.name!r}; "
                "'make all' in a checkout installs it, or pip install '.[spark,dashboard,demo]'"
            ) from missing
        assert isinstance(command, click.Command)
        return command


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    version("batonmq"),
    prog_name="batonmq",
    message=f"%(prog)s, version %(version)s ({'compiled' if COMPILED else 'pure'})",
)
def main() -> None:
    """A highly available message queue, compatible with Apache RocketMQ 5, with a Spark pipeline over it.

    The smallest queue is a name server and a broker, and needs no file:

    \b
      batonmq namesrv
      batonmq broker -n 127.0.0.1:9876
      batonmq admin sendMessage -n 127.0.0.1:9876 -t orders -p hello

    A replicated one, which survives the loss of a broker, has a controller and two brokers with a file each:
    'batonmq controller --help' and 'batonmq broker --help' show files to begin with. 'batonmq demo' starts
    such a cluster, kills the master under load and shows that nothing was lost.
    """
