"""``python -m tests.interop.upstream [CLASS ...]``: RocketMQ's integration tests against BatonMQ.

Without arguments all classes run. CLASS is a part of a class's name. The outcomes are kept in ``results/``,
and the page docs/interop-upstream.md is written from them. The exit code is 1 if a method that passes on
RocketMQ fails here and ``differences.toml`` has no reason for it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.interop.upstream import cluster, jars, results
from tests.interop.upstream.run import Run, run_classes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.upstream", description=__doc__)
    parser.add_argument("classes", metavar="CLASS", nargs="*", help="part of a class's name (default: all)")
    parser.add_argument(
        "--on", choices=("ours", "java"), default="ours", help="whose servers (default: ours)"
    )
    parser.add_argument(
        "--work", type=Path, help="keep stores and logs there (default: a temporary directory)"
    )
    parser.add_argument("--method-limit", type=int, default=90, metavar="S", help="seconds for a method (90)")
    parser.add_argument("--class-limit", type=int, default=600, metavar="S", help="seconds for a class (600)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the brokers"
    )
    parser.add_argument("--list", action="store_true", help="print the classes and stop")
    parser.add_argument("--page", action="store_true", help="only write the page from the kept outcomes")
    chosen = parser.parse_args()
    if chosen.page:
        results.write_page()
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with the end of the programs it started
    jars.fetch()
    classes = [
        name
        for name in jars.test_classes()
        if not chosen.classes or any(part in name for part in chosen.classes)
    ]
    if chosen.list or not classes:
        print("\n".join(classes) or "no class has such a name")
        return 0 if classes else 2
    with tempfile.TemporaryDirectory(prefix="upstream-") as scratch:
        work = chosen.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        extra = dict(each.split("=", 1) for each in chosen.set)
        run = Run()
        try:
            with cluster.running(chosen.on, work, extra) as running:
                run_classes(
                    classes,
                    running,
                    work,
                    method_limit_s=chosen.method_limit,
                    class_limit_s=chosen.class_limit,
                    show=lambda line: print(line, flush=True),
                    run=run,
                )
        finally:  # also of a run that was interrupted
            path = results.kept(chosen.on)
            results.save(path, results.merged(results.load(path), run.outcomes))
    words = [each.word for each in run.outcomes.values()]
    took = time.monotonic() - began
    print(f"{', '.join(f'{words.count(word)} {word}' for word in ('PASS', 'FAIL', 'SKIP'))} in {took:.0f} s")
    if chosen.on == "java":
        return 0
    results.write_page()
    found = results.differences(results.load(results.kept("java")), run.outcomes, results.reasons())
    without_reason = [each for each in found if each.worse and not each.reason]
    for each in without_reason:
        print(f"passes on RocketMQ, not here: {each.ours.name} {each.ours.word} {each.ours.reason}")
    return 1 if without_reason else 0


if __name__ == "__main__":
    sys.exit(main())
