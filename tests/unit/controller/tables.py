"""Runs scripts against a `ControllerMachine`: commands, `----`, expected answers and state.

A script is a list of commands, one a line, `#` starts a comment:

    at 5000                                        the time of the following events, ms
    apply set=s id=1 [code=addr;time] [cluster=c]  claim a broker id
    register set=s id=1 addr=host:port             report the address
    beat set=s id=1 [epoch=] [offset=] [priority=] [timeout=] [session=] [cluster=]
    elect set=s [id=] [designated] [unclean]
    alter set=s master= epoch= members=1,2 set-epoch=
    clean set=s [ids=1;2] [living]
    closed session=7 set=s id=1 [unclean]
    scan [unclean]
    leader [sessions=s/1/7,s/2/8] [silent=s/1/2500,s/2/10]
    info set=s | next set=s                        reads
    group set=s replicas=3                         shorthand: claim, register, and one heartbeat of each

Every command prints its response code and what it answered, then effects, then the state of the set.
REWRITE_TABLES=1 pytest … writes the actual output into the file; read the diff.
"""

from __future__ import annotations

from collections.abc import Mapping

from batonmq.controller import events, queries
from batonmq.controller.effects import Election, Outcome
from batonmq.controller.machine import ControllerMachine
from batonmq.net.dispatch import Reply
from batonmq.protocol.codes import ResponseCode

START_MS = 1_000


class Script:
    def __init__(self) -> None:
        self.machine = ControllerMachine()
        self.now_ms = START_MS
        self.index = 0

    def run(self, text: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            command = line.split("#", 1)[0].split()
            if command:
                lines += self._command(command[0], dict(_pair(word) for word in command[1:]))
        return "\n".join(lines)

    def apply(self, event: events.AnyEvent) -> Outcome:
        self.index += 1
        outcomes = self.machine.apply(self.index, events.encode(self.now_ms, (event,)))
        assert len(outcomes) == 1
        return outcomes[0]

    def _command(self, verb: str, args: dict[str, str]) -> list[str]:
        name = args.get("set", "s")
        if verb == "at":
            self.now_ms = int(next(iter(args)))
            return []
        if verb == "group":
            for number in range(1, int(args["replicas"]) + 1):
                self._command("apply", {"set": name, "id": str(number)})
                self._command("beat", {"set": name, "id": str(number), "session": str(number)})
            return []
        if verb == "info":
            return [_reply(verb, queries.replica_info(self.machine.broker_sets, name))]
        if verb == "next":
            return [_reply(verb, queries.next_broker_id(self.machine.broker_sets, "c", name))]
        outcome = self.apply(self._event(verb, name, args))
        lines = [_answer(verb, outcome)]
        lines += [f"  {_effect(effect)}" for effect in outcome.effects]
        lines.append(f"  = {self.state(name)}")
        return lines

    def _event(self, verb: str, name: str, args: dict[str, str]) -> events.AnyEvent:
        broker_id = int(args.get("id", events.NO_BROKER))
        unclean = "unclean" in args
        match verb:
            case "apply":
                code = args.get("code", f"host{broker_id}:1;{broker_id}")
                return events.ApplyBrokerId(args.get("cluster", "c"), name, broker_id, code)
            case "register":
                return events.RegisterBroker(args.get("cluster", "c"), name, broker_id, args["addr"])
            case "beat":
                beat = events.Beat(
                    args.get("cluster", "c"),
                    name,
                    broker_id,
                    f"host{broker_id}:1",
                    int(args.get("session", broker_id)),
                    int(args.get("timeout", 10_000)),
                    int(args.get("epoch", 1)),
                    int(args.get("offset", 0)),
                    int(args.get("offset", 0)),
                    int(args.get("priority", 100)),
                )
                return events.Heartbeats((beat,))
            case "elect":
                cause = "admin" if "designated" in args else "broker"
                return events.ElectMaster(name, broker_id, "designated" in args, unclean, cause)
            case "alter":
                return events.AlterSyncStateSet(
                    name,
                    int(args["master"]),
                    int(args["epoch"]),
                    tuple(int(part) for part in args["members"].split(",")),
                    int(args["set-epoch"]),
                )
            case "clean":
                return events.CleanBrokerData("c", name, args.get("ids", ""), "living" in args)
            case "closed":
                return events.ChannelClosed(int(args["session"]), ((name, broker_id),), unclean)
            case "scan":
                return events.Scan(True, True, unclean)
            case "leader":
                parts = [part.split("/") for part in args.get("sessions", "").split(",") if part]
                sessions = tuple((part[0], int(part[1]), int(part[2])) for part in parts)
                parts = [part.split("/") for part in args.get("silent", "").split(",") if part]
                silent = tuple((part[0], int(part[1]), int(part[2])) for part in parts)
                return events.LeaderStarted("n0", sessions, silent)
        raise ValueError(f"unknown command {verb}")

    def state(self, name: str) -> str:
        broker_set = self.machine.broker_sets.get(name)
        if broker_set is None:
            return f"{name} is unknown"
        return (
            f"master={broker_set.master_id} epoch={broker_set.master_epoch} "
            f"sync_state_set={list(broker_set.sync_state_set)} set_epoch={broker_set.sync_state_set_epoch} "
            f"alive={sorted(broker_set.alive(self.now_ms))}"
        )


def _pair(word: str) -> tuple[str, str]:
    key, _, value = word.partition("=")
    return key, value


def _answer(verb: str, outcome: Outcome) -> str:
    return _shown(verb, outcome.code, {} if outcome.header is None else outcome.header.to_ext())


def _reply(verb: str, reply: Reply) -> str:
    return _shown(verb, reply.code, reply.ext or {} if reply.header is None else reply.header.to_ext())


def _shown(verb: str, code: int, fields: Mapping[str, str]) -> str:
    shown = "".join(f" {key}={value}" for key, value in fields.items() if key not in _CONSTANT)
    return f"{verb}: {ResponseCode(code).name}{shown}"


_CONSTANT = {"clusterName", "brokerName"}


def _effect(effect: object) -> str:
    if isinstance(effect, Election):
        change = f"{effect.old_master} -> {effect.new_master}{' unclean' if effect.unclean else ''}"
        return f"election by {effect.cause}: {effect.result} {change}"
    return str(effect)
