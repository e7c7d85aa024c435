"""The jars of RocketMQ's tests from Maven Central, and our classes that stand before them, compiled."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

RELEASE = "5.5.0"
PEER = Path(__file__).parents[1] / "peer.sh"
JAVA = Path(__file__).parent / "java"
OPEN = ("java.base/java.nio", "java.base/java.lang", "java.base/java.util", "java.base/sun.nio.ch")
LIBRARIES = (
    ("junit", "junit", "4.13.2"),
    ("org.assertj", "assertj-core", "3.22.0"),
    ("org.mockito", "mockito-core", "4.11.0"),
)
"""Which RocketMQ's tests need beside RocketMQ: versions of its build, but a Mockito that knows Java 17."""
LEFT_OUT = {
    "container": "starts broker containers in its process",
    "dledger": "starts DLedger brokers in its process",
    "grpc": "tests the gRPC proxy, which starts in its process",
    "autoswitchrole": "starts brokers and controllers in its process",
    "lmq": "tests a benchmark without a broker",
    "schema": "tests Java's classes without a broker",
}
"""Packages below org.apache.rocketmq.test that do not run here, and why."""
_PREFIX = "org/apache/rocketmq/test/"


def home() -> Path:
    """Where peer.sh keeps what it fetched."""
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return Path(os.environ.get("PEER_HOME", f"{cache}/rocketmq-peer"))


def fetch() -> Path:
    """The directory with the jars of the tests. Raises CalledProcessError without Maven or network."""
    subprocess.run([PEER, "get"], check=True, env={**os.environ, "RMQ_VERSION": RELEASE})
    jars = home() / f"test-{RELEASE}"
    if not jars.exists():
        with tempfile.TemporaryDirectory(dir=home()) as scratch:
            pom = Path(scratch, "pom.xml")
            pom.write_text(_pom())
            got = Path(scratch, "jars")
            command = ["mvn", "--quiet", "--batch-mode", f"--file={pom}", "dependency:copy-dependencies"]
            subprocess.run([*command, f"-DoutputDirectory={got}"], check=True)
            got.rename(jars)
    return jars


def _pom() -> str:
    bare = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = [
        _dependency("org.apache.rocketmq", "rocketmq-test", RELEASE, bare),
        _dependency("org.apache.rocketmq", "rocketmq-test", RELEASE, f"<classifier>tests</classifier>{bare}"),
        *(_dependency(*library) for library in LIBRARIES),
        _dependency("com.google.truth", "truth", "0.30", bare),
    ]
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>interop</groupId><artifactId>upstream</artifactId><version>1</version>"
        f"<dependencies>{''.join(wanted)}</dependencies></project>\n"
    )


def _dependency(group: str, artifact: str, version: str, more: str = "") -> str:
    names = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    return f"<dependency>{names}{more}</dependency>"


def test_classes() -> list[str]:
    """Full names of the classes with tests that run here, sorted."""
    found = []
    with zipfile.ZipFile(home() / f"test-{RELEASE}" / f"rocketmq-test-{RELEASE}-tests.jar") as jar:
        for name in jar.namelist():
            if name.startswith(_PREFIX) and name.endswith("IT.class"):
                package = name.removeprefix(_PREFIX).split("/")[0]
                if package not in LEFT_OUT:
                    found.append(name.removesuffix(".class").replace("/", "."))
    return sorted(found)


def class_path() -> str:
    """Our classes, compiled once for each state of their source, before RocketMQ's tests and RocketMQ."""
    sources = sorted(JAVA.rglob("*.java"))
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    classes = home() / f"upstream-{state}"
    libraries = f"{home() / f'test-{RELEASE}'}/*:{home() / f'lib-{RELEASE}'}/*"
    if not classes.exists():
        with tempfile.TemporaryDirectory(dir=home()) as scratch:
            made = Path(scratch, "classes")
            subprocess.run(["javac", "-nowarn", "-d", made, "-cp", libraries, *sources], check=True)
            made.rename(classes)
    return f"{classes}:{libraries}"


def java_command(work: Path, heap: str, properties: dict[str, str]) -> list[str]:
    """``java`` with that class path, logs of RocketMQ's clients below `work`; a main class is to follow."""
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPEN]
    all_properties = {"user.home": str(work), "rocketmq.client.logRoot": str(work / "logs"), **properties}
    defined = [f"-D{key}={value}" for key, value in all_properties.items()]
    return ["java", f"-Xmx{heap}", "-XX:+UseSerialGC", *opened, *defined, "-cp", class_path()]
