"""getNamesrvConfig: the configuration name servers run with."""

from batonmq.admin.command import command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.common.config import parse_properties
from batonmq.protocol.headers import namesrv as wire


@command("getNamesrvConfig")
async def main(admin: Admin, out: Output) -> None:
    """Show every configuration key of name servers."""
    configs: dict[str, dict[str, str]] = {}
    for address in admin.namesrv:
        answer = await admin.ask(address, wire.GetNamesrvConfig())
        configs[address] = parse_properties(bytes(answer.body).decode())
    keys = sorted({key for config in configs.values() for key in config})
    out.table(["key", *configs], [[key, *(c.get(key, "") for c in configs.values())] for key in keys])
